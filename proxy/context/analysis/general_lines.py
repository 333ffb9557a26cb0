"""Lines that programs of many kinds print: errors, counts of failures, remarks after an outcome, and words of success.

They are regular expressions, matched as those of `runners` are. Each is for a place: the last line of an output, the
lines on a failure, or any line.
"""

from __future__ import annotations

GENERAL_FAILURES: tuple[tuple[str, int], ...] = (
    (r"(?:[\w.]+\.)?\w*(?:Error|Exception|Exit|Interrupt)(?: \[\w+\])?(?::|$)", 0),
    (r"[\w.]+\.(?:exceptions?|errors?)\.\w+: ", 0),
    (r"(?:fatal )?[Ee]rror(?:\[\w+\])?: ", 0),
    (r"(?:FAIL|FAILED|ERROR|FATAL|CRITICAL):? +(?!(?:0|none)$)\S", 0),
    (r"\W*(?:panic|fatal): |(?:ERRO|FATA)\[\d+\] ", 0),
    (r".*\bpanicked at\b", 1),
    (r".*: (?:fatal )?error:? ", 0),
    (r"\S+:\d+:\d+:? \S", 0),
    (r"\S+: can(?:not|'t) ", 0),
    (r".*(?:: command not found|: not found$|\bNo such file or directory|\bPermission denied)", 0),
    (r".*(?:\bdoes not exist|\bNo module named )", 0),
    (r"[\u2715\u2716\u2717\u2718\u00d7] ?\S", 0),
    (r"<tool_use_error>", 0),
)  # fmt: skip
"""First lines on a failure that many programs print, each with the number of following lines that belong to it."""

ERROR_LINES = (
    r"(?:[\w.]+\.)?\w*(?:Error|Exception|Interrupt)(?: \[\w+\])?(?::(?! *[-+]?[\d.]+%?$)|$)"
    r"|[\w.]+\.(?:exceptions?|errors?)\.\w+: |(?:fatal )?[Ee]rror(?:\[\w+\])?: (?![-+]?[\d.]+%?$)"
    r"|(?:FAIL|FAILED|ERROR|FATAL):? +(?!(?:0|none)$)\S|\W*(?:panic|fatal): |<tool_use_error>"
    r"|.*(?:: command not found|: not found$|\bNo such file or directory|\bPermission denied|\bNo module named )"
    r"|.*: (?:fatal )?error: |\S+: +can(?:not|'t) |\S+\.\w+:\d+:\d+: \S"
    r"|Traceback \(most recent call last\):"
    r"|[-\d\s:.]{0,120}curl: \(\d+\) |(?:\S+ ){2}ERROR \d{3}: |denied: requested access"
    r"|An error occurred \(\w+\) when calling |.*\bConnection refused\.?$"
    r"|\S*: line \d+: +\d+ (?:Killed|Bus error|Illegal instruction)\b|(?:[a-z]+ ){1,5}failed: (?!\d|none)\S"
    r"|.*\bexit(?:ed)? (?:with )?(?:status|code) [1-9]\d*\.?$"
    r"|(?:Add|Clear|Connect|ConvertFrom|ConvertTo|Copy|Disable|Enable|Enter|Expand|Export|Find|Get|Import|Install|Invoke"
    r"|Join|Mount|Move|New|Out|Publish|Receive|Register|Remove|Rename|Resolve|Restart|Restore|Resume|Save|Select|Send"
    r"|Set(?!-Cookie)|Split|Start|Stop|Suspend|Test|Uninstall|Unregister|Update|Wait|Write)-[A-Z]\w+ ?: \S"
    r"|Node\.js v\d+\.\d+\.\d+$|Bun v\d+\.\d+\.\d+ \(|https://www\.shellcheck\.net/wiki/SC\d+ -- "
    r"|package \S+ is not a main package$|There are no \.py\[i\] files in |(?:ERRO|FATA)\[\d+\] "
    r"|(?:Fehler|Schwerwiegend|[Ee]rreur|fatal|[Ee]rrore|\u9519\u8bef|\u81f4\u547d\u9519\u8bef"
    r"|\u043e\u0448\u0438\u0431\u043a\u0430)\s?[:\uff1a] ?\S"
    r"|.*: (?:Kommando nicht gefunden|Befehl nicht gefunden|commande introuvable|orden no encontrada"
    r"|comando non trovato|Datei oder Verzeichnis nicht gefunden|Aucun fichier ou dossier de ce type"
    r"|No existe el \w+ o el directorio"
    r"|comando n\u00e3o encontrado"
    r"|\u043a\u043e\u043c\u0430\u043d\u0434\u0430 \u043d\u0435 \u043d\u0430\u0439\u0434\u0435\u043d\u0430"
    r"|\u041d\u0435\u0442 \u0442\u0430\u043a\u043e\u0433\u043e \u0444\u0430\u0439\u043b\u0430"
    r"|\u0627\u0644\u0623\u0645\u0631 \u063a\u064a\u0631 \u0645\u0648\u062c\u0648\u062f"
    r"|\u305d\u306e\u3088\u3046\u306a\u30d5\u30a1\u30a4\u30eb\u3084\u30c7\u30a3\u30ec\u30af\u30c8\u30ea\u306f"
    r"|File o directory non esistente|Nie ma takiego pliku|Arquivo ou diret\u00f3rio inexistente"
    r"|\u672a\u627e\u5230\u547d\u4ee4|\u6ca1\u6709\u90a3\u4e2a\u6587\u4ef6\u6216\u76ee\u5f55)"
)
"""Last lines that report an error. Node.js and Bun write their version after an exception that nobody caught. curl
writes its error after its progress."""

REMARK_LINES = (
    r"A new (?:minor |major |patch )?(?:release|version) of |To update, run: |npm notice\b|npm (?:WARN|warn) "
    r"|\d+ packages? (?:is|are) looking for funding|run `npm fund`|\d+ (?:\w+ severity )?vulnerabilit"
    r"|To address (?:all )?issues|npm audit fix|Run `npm audit`|Some issues need review"
    r"|(?:Tests|Snapshots|Time|Total time|Finished at|Start at|Duration|Transform|Tests {2}): +\S|Ran all test suites"
    r"|(?:Tests|Start at|Duration) {2,}\S|\d+ actionable tasks?: "
    r"|ERROR: Pipe to stdout was broken$"
    r"|Use `bundle info|Destroying test database|\[(?:SQL|parameters): |\(Background on this error at: "
)
"""Lines that some programs write after the line that reports the outcome."""

MAX_REMARKS = 15
"""Maximum number of such lines at the end of an output."""

CLOSING_LINES = (
    r"FAILURE: Build |BUILD FAIL|Build (?:failed|FAILED) with |ERROR: Build did NOT|ninja: build stopped|\W*ELIFECYCLE"
    r"|Execution failed for task |\* What went|> (?:There were failing|A failure occurred|Compilation (?:fail|er))"
    r"|\[ERROR\](?: +(?:->|\[Help|To see|Re-run|For more|Failed to execute|Please refer|Tests run|After ).*)?$"
    r"|\[ERROR\] +\w+: *$"
    r"|(?:\[error\] )?(?:Total time: |\(.* / |(?:one|two|three|four|five|\d+) errors? found)"
    r"|.*make(?:\[\d+\])?: \*{3} .*Error \d|error: (?:could not compile|aborting due|Recipe )"
    r"|For more information about |Tests run: \d"
    r"|npm (?:ERR!|error)(?: (?:A complete|Lifecycle|code (?:\d|ELIFECYCLE)|command|errno|location|path|workspace).*)?$"
    r"|npm error (?:Run \"npm help|aliases: |\[)|error: test failed, to rerun |at (?:.*\()?node:"
    r"|error: fatalError$|FAILED \(\w+=\d|!+ .* !+$|!  ==> |Error: \[\w+-\d+\]$|.*:$"
    r"|(?:\[\w+\] +)?[A-Z]\w*(?: \w+)?: +\d+, +[A-Z]\w*: +\d|(?:[Ee]rror: )?(?:\d+ [\w()]+(?: \w+)?(?:, |$))+$"
    r"|(?:.* with |\W*(?:\[\w+\] )?(?:[Ee]rror: |Found |Total:? |(?:\d+ \w+, )*))\d+ (?:\w+ )?"
    r"(?:(?:errors?|failures?|problems?)\b(?!:)|Error\(s\))"
)
"""Lines with which programs end after any failure: they say that a run failed, and not why."""

TRACEBACK = r"Traceback \(most recent call last\):"
"""The line above an exception that nobody caught, or that the program printed."""

IGNORED_ERROR = r"Exception ignored (?:in|while|on)\b|future: <Task finished\b"
"""The beginning of an error that changes no exit code of Python: at its exit, or in a task that nobody awaited."""

CUT_LINE = (
    r"\W{0,20}(?:(?:the )?(?:output|response|result|content|lines?|text)\W{1,20}(?:was |were |has been |is )?)?"
    r"(?:\d[\d,]* (?:more |of \d+ )?(?:lines?|characters?|chars|bytes|tokens)(?: of output)? )?(?:were |was )?"
    r"(?:truncated|omitted|elided|clipped|snipped)\b(?!.*\b(?:rows?|tables?|table)\b)"
    r"|\W{0,20}(?:\+|\.\.\. ?\+?)\d+ (?:more )?lines\b"
)
"""A line in place of a part of the output."""

HARMLESS_LINES = (
    r"\d+\) |\S*\d\d:\d\d:\d\d\b|\S+:\d+(?::\d+)?:? (?:warning|note|info|remark)\b"
    r"|go: (?:downloading|finding|extracting|added|upgraded)|\S*ld: warning|[\u2715\u2716\u2717\u2718\u00d7] ?0\b"
)
"""Lines that look like the first line on a failure but are none: numbered lists, times, warnings, downloads."""

BROKEN_END = (
    r".*\b(?:failed with (?:exit|status|code|error)|below (?:the )?(?:\w+ )?(?:minimum|threshold))\b|\*\* \(\w+\) "
    r"|Snapshots: .*\b[1-9]\d* obsolete"
)
"""A line below a success with which something else has failed: the success is not that of the whole run. Jest ends with
1 for an obsolete snapshot if it runs with `--ci`."""

NO_TESTS = (
    r"=* ?(?!.*\b[1-9]\d* passed)[1-9]\d* (?:skipped|deselected)\b.*\bin [\d.]+|collected 0 items$"
    r"|\W*(?:[Nn]o (?:suitable )?tests? (?:to run|ran|found|executed|were|defined|matche?[sd]?|is available"
    r"|files? found)"
    r"|No test files found)\b|NO TESTS RAN$"
    r"|Ran 0 tests?\b|(?:\[\w+\] )?Tests run: 0,|\W*Executed 0 (?:tests?,|of \d+ )"
    r"|0 (?:tests?|examples?|runs|scenarios?|specs?)\b"
    r"|\?\s+\S+\s+\[no test files\]|ok\s+\S+\s.*\[no tests to run\]|test result: ok\. 0 passed|running 0 tests$"
    r"|Test(?: Suites|s| Files):?\s++(?!.*\bpassed)[1-9]\d* (?:skipped|todo)\b|0 passing\b|[#\u2139] (?:tests|pass) 0$"
    r"|ok \| 0 passed|0 pass$|ok \d+ .*# SKIP\b|All (?:examples were filtered out|tests have been excluded)|1\.\.0\b"
    r"|([1-9]\d*) (?:tests?|examples?), 0 failures, \1 (?:excluded|skipped|pending)"
    r"|\[  PASSED  \] 0 tests|\d\d:\d\d \+0: All tests passed|Tests: succeeded 0, failed 0"
    r"|Tests Passed: 0, Failed: 0\b|Summary \[.*\b0 tests run"
    r"|\d+ tests?, 0 passed, 0 failed"
    r"|> Task :\S*[tT]est NO-SOURCE|<testsuites?\b[^>]*\btests=\"0\""
)
"""Lines that report that no test ran: none was there, or all were skipped, left out or deselected."""

NO_TESTS_WORDS = (
    r"\b0\b|# SKIP|[Nn]o (?:suitable )?test|NO TESTS|skipped|deselected|todo|excluded|filtered|NO-SOURCE|\.\.0"
)
"""A pattern of a word that each of these lines has."""

TESTS_RAN = (
    r"(?:\[\w+\] )?Tests run: [1-9]|[#\u2139] pass [1-9]|> Task :\S*[tT]est(?: UP-TO-DATE| FROM-CACHE)?$"
    r"|<testsuites?\b[^>]*\btests=\"[1-9]|Tests:\s.*\b[1-9]\d* passed"
)
"""Lines that report that a test ran, where the line of success says nothing of tests."""

BUILT = (
    r"(?:\[\w+\] )?BUILD SUCCESS|Build succeeded|[#\u2139] fail 0$|NX +Successfully|\*\* BUILD SUCCEEDED|Test Suites:"
)
"""Lines of success that are printed without a test, too."""

FAILURE_COUNT = r"(?<![\w.])(?<!\bok )[1-9]\d* (?:failed|failures?|failing|errors?)\b(?!.*\b0 remaining)"
"""A count of failures other than 0, anywhere in a line: it turns a line that begins like a success into a failure. In
`ok 1 error is shown` of TAP the number is that of the test."""

LOG_HEADERS = (
    r"(?P<indent>\s*)console\.\w+(?: \S+)?$|(?P<vitest>(?:stdout|stderr) \| \S)|(?P<xml>\s*<system-(?:out|err)>)"
    r"|-+ Captured (?:stdout|stderr|log) \w+ -+$"
)
"""A line above the output of a test, which its runner shows apart: of jest, vitest, JUnit's XML and pytest."""

OPENED_RUNS = (
    (r"=+ test session starts =+$", r"=* ?(?:no tests ran|\d+ \w+(?:, \d+ \w+)*) in [\d.]+|Results \([\d.]+"),
    (r"running [1-9]\d* tests?$", r"test result: "),
)
"""Pairs of (the line with which a runner begins, the line with which it ends). A test that ends the process hides the
second one, for example with `os._exit(0)`."""

CONSOLE_LINE = r"console\.\w+(?: \S+)?$"
"""The line with which jest and vitest begin the log of a test; the log is indented below it."""


FAILED_CHECKS = (
    r"[\u274c\u2717\u2718\u2716\u2715] ?(?!\s*0\b)\S|.*\S\s?[\u274c\u2717\u2718]$|\[ *(?:FAIL(?:ED)?|ERROR) *\] \S"
    r"|(?:FAIL|FAILED|FAILURE)(?::| -+) *(?!0\b|none\b)\S|.{0,200}(?:\.{2,}|[:=>|\u2192-]) ?FAIL(?:ED)?\b(?!\W*0\b)"
    r"|.{0,200}\.{2,} ?ERROR\b|.{0,200}?(?<![\d.])(\d+) ?(?:/|(?:out )?of) ?(?!\1\b)\d+ (?:\w+ ){0,2}pass(?:ed|ing)?\b"
    r"|.{0,200}?\b[Pp]ass(?:ed|ing): *(\d+) ?(?:/|of) ?(?!\2\b)\d"
    r"|.{0,200}?\d (?:\w+ )?(?:passed|succeeded|ok)\b.{0,80}?(?<!\d)[1-9]\d* (?:\w+ )?fail(?:ed|ures?|ing)?\b"
    r"|.{0,200}?(?<!\d)[1-9]\d* (?:\w+ )?fail(?:ed|ures?|ing)?\b.{0,80}?\d (?:\w+ )?(?:passed|succeeded|ok)\b"
    r"|\W*[Ff]ail(?:ed|ures|ing)? ?: *[1-9]\d*\b"
    r"|(?:\S+: )?[a-z]+: (?:cannot|can't) \S|[a-z]+: .{1,200}: (?:No such file or directory|Permission denied)$"
    r"|\S+: (?:line )?\d+: \S+: (?:command )?not found$|\S+:\d+:\d+: runtime error: |==\d+== ERROR SUMMARY: [1-9]"
)
"""Lines with which a script reports a failed check or command. Many scripts end with 0 all the same."""

FAILED_CHECK_WORDS = (
    r"FAIL|[Ff]ail|ERROR|[Pp]ass|cannot|can't|No such|Permission|not found|runtime error"
    r"|[\u274c\u2717\u2718\u2716\u2715]"
)
"""A pattern of a word that each of these lines has."""

SUCCESS_WORDS = (
    r"Plan: \d+ to (?:add|import)|No changes\. |Terraform has been successfully init|"
    r"\W*[Aa]ll (?:\S+ ){0,4}(?:tests?|checks?|specs?)\b.*\b(?:pass|succe|work)"
    r"|(?:--- )?PASS(?:ED)?\b|ok \d|Tests?:? .*\bpassed"
)
"""Lines with words of success. They are kept, but prove nothing."""

"""Commands that run tests, builds and checks: as patterns of the beginning of a command."""

from __future__ import annotations

RUNNER_COMMANDS = (
    r"(?:(?:uv|poetry|pipenv|hatch|pdm|rye) run (?:-m )?|(?:npx|bunx|yarn|pnpm(?: exec)?) (?:-\S+ )*"
    r"|python[\d.]* (?:-\w )*-m |coverage run -m |bundle exec |php )*(?:\S*/)?"
    r"(?:pytest|py\.test|unittest|jest|vitest|mocha|ava|playwright test|rspec|phpunit|ctest|ruff|mypy|black|pyright"
    r"|pylint|flake8|eslint|prettier|tsc|cmake|mvnw?|gradlew?|golangci-lint|terraform|node --test"
    r"|pest|phpstan|artisan test|rails test|rubocop|cucumber|behave|robot|cypress run|tap|sbt|lein|stack test"
    r"|prove|bats"
    r"|xcodebuild|buck2|nx|turbo|meson test|pre-commit|biome|manage\.py test|cargo nextest|forge test"
    r"|flutter (?:test|analyze)|dart (?:test|analyze)"
    r"|(?:go|cargo|dotnet|swift|mix|deno|bun|zig) (?:test|build|check|clippy))(?: |$)"
)
"""Commands that are runners themselves, and not scripts that start runners."""

STARTING_COMMANDS = (
    r"(?:npm|pnpm|yarn|bun|make|gmake|just|task|rake|invoke|hatch|pdm|poetry|uv|tox|nox|bazel"
    r"|mise|mage|moon|lerna|pants|earthly)(?: |$)"
)
"""Commands that start runners and pass on their failure: a line of success at the end of their output is theirs."""

REPEATING_COMMANDS = (
    r"\b(?:for|while|until)\s.*\bdone\b|\bxargs\b|\s-exec(?:dir)?\b|\bparallel\b"
    r"|\b(?:npm|pnpm|yarn|bun)\b.*\s(?:-ws|--workspaces|-r|--recursive|workspaces|--filter)\b"
    r"|\b(?:lerna|turbo) run\b|\bnx run-many\b|\bmake\b.*\s(?:-k|-i|--keep-going|--ignore-errors)\b"
    r"|\b(?:dotnet test|tap|bats)\b.*\|\s*tail\b"
)
"""Commands that may run one program many times: the success of the last run proves nothing of the others. `dotnet test`
reports each project in a line of its own, and TAP each test. Of these `tail` may show the last one alone."""

TRIAL_COMMANDS = (
    r"\s(?:--dry-run|--collect-only|--co\b|--no-run|--list-?tests|--listTests|--list-suites|--setup-plan|--fixtures"
    r"|--just-print|--recon|--nobuild|--simulate|--whatif|-WhatIf|-DskipTests|-Dmaven\.test\.skip)\b"
    r"|(?<!\S)g?make (?:\S+ )*-\w*n\b|(?<!\S)(?:ctest (?:\S+ )*-N|ninja (?:\S+ )*-n|dotnet test (?:\S+ )*-t)\b"
    r"|(?<!\S)git (?:clean|push|add|rm|mv) (?:\S+ )*-\w*n|(?<!\S)(?:vitest|nextest|swift test) list\b"
    r"|(?<!\S)(?:nox|tox) (?:\S+ )*(?:-l|-a|--list\S*|list)(?!\S)"
    r"|(?<!\S)(?:cargo test|playwright test) .*--list\b|(?<!\S)go test (?:\S+ )*-list\b"
)
"""Commands that list what they would do, or build what they would run: their success is none of a test."""

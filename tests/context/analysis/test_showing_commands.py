"""Commands that only show something, and those that do something."""

from __future__ import annotations

import pytest

from proxy.context.analysis import shell_commands


@pytest.mark.parametrize(
    "text",
    [
        "ls -la",
        "cat a | grep b",
        "cd x && git log",
        "git -C x diff",
        "sed -n 1,5p a",
        "true",
        "echo 'pytest'",
        "",
        "find . -name '*.py' -exec grep -l x {} \\; -exec wc {} +",
        "find . \\( -name a -o -name b \\) -print",
    ],
)
def test_a_command_that_only_shows_is_a_look(text: str) -> None:
    assert shell_commands.parse_command(text).kind == "look"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("env", True), ("env | grep PATH", True), ("env A=b cat x", True), ("env -u HOME A=b pytest", False),
        ("sudo -u app cat x", True), ("timeout -k 5 60 cat x", True), ("timeout 60 pytest", False),
        ("command -v node", True), ("docker exec app env", True),
    ],
)  # fmt: skip
def test_a_command_after_a_prefix_is_read(text: str, shown: bool) -> None:
    assert (shell_commands.parse_command(text).kind == "look") == shown


@pytest.mark.parametrize("text", ["sed -i s/a/b/ x", "git add x", "rm x", "python -c 'print(1)'", "./run.sh"])
def test_a_command_that_changes_or_computes_is_a_run(text: str) -> None:
    assert shell_commands.parse_command(text).kind == "run"


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("docker logs api", True),
        ("cd /r && sudo curl -s http://localhost/health | jq .", True),
        ("gh run view 7 --log", True),
        ("ssh host tail -n 9 a.log", True),
        ("ssh -p 22 -i key me@host 'sudo tail -n 9 /var/log/a.log | grep FAILED'", True),
        ("ssh host \"bash -c 'cat a.log'\"", True),
        ("docker compose exec -T -e A=b web cat a.log", True),
        ("kubectl exec -n x pod -c y -- sh -c 'tail a.log'", True),
        ("kubectl -n x exec pod -- tail a.log", True),
        ("docker --tls compose -f a.yml exec web cat a.log", True),
        ("kubectl --context prod-eu -n checkout logs deploy/api --since=30m | tail -90", True),
        ("kubectl --kubeconfig a.cfg --as admin get pods", True),
        ("docker --context far compose -p shop logs web", True),
        ("gh -R owner/name run view 7 --log", True),
        ("helm --kube-context prod-eu -n checkout history api", True),
        ("aws --profile audit --region eu-west-1 ec2 describe-instances", True),
        ('psql -h db -c "SELECT count(*) FROM orders"', True),
        ("bash -c 'curl -s http://localhost/health'", True),
        ("bash -lc 'cat build.log'", False),
        ("cat curl.txt", False),
        ("grep -rn docker .", False),
        ("Get-EventLog -LogName Application -Newest 60 | Format-Table -Auto", False),
        ("Get-Process | Where-Object { $_.CPU -gt 5 } | Sort-Object CPU | Select-Object -First 3", False),
        ("Test-NetConnection DB-02 -Port 1433", False),
    ],
)
def test_a_command_that_shows_the_answer_of_another_program(text: str, asks: bool) -> None:
    found = shell_commands.parse_command(text)
    assert (found.kind, found.asks_another) == ("look", asks)


@pytest.mark.parametrize(
    "text",
    [
        "ssh host 'cd /r && pytest -q'",
        "ssh host",
        "docker exec -w /r app pytest -q",
        "kubectl exec pod -- make test",
        "kubectl -n x exec pod -- make test",
        "docker run exec 'cat a.log'",
        "bash -c 'cat a.log; make'",
        'bash -c "$(curl -fsSL http://x/install.sh)"',
        "git commit -m 'cat a.log'",
        "kubectl --context prod-eu -n checkout rollout undo deploy/get",
        "kubectl -n logs apply -f get.yaml",
        "Get-Process node | Stop-Process -Force",
        "Measure-Command { dotnet build }",
    ],
)
def test_a_carried_command_that_runs_something_is_a_run(text: str) -> None:
    assert shell_commands.parse_command(text).kind == "run"


@pytest.mark.parametrize(
    ("text", "kind"), [("gofmt -l .", "look"), ("gofmt -d a.go", "look"), ("gofmt -l -w .", "run")]
)
def test_a_formatter_that_lists_files_only_shows_since_it_ends_with_0_all_the_same(text: str, kind: str) -> None:
    assert shell_commands.parse_command(text).kind == kind

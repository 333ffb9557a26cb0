"""A world for the closed loop of ../shared: a fleet of services, of which short facts are wanted again and again.

Manifests (`key: value`) and tables of nodes are small and wanted at any time; the logs of deployments are long and
wanted once, but for their digest. Calls come side by side, and the agent changes itself what it has read before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from agent import Action, Mind, Seen, call
from worlds import Base, Verdict, tool

SERVICES, REGIONS, NODES, TASKS = 12, 4, 22, 44
KINDS = ("copy",) * 5 + ("swap",) * 3 + ("drain",) * 4 + ("deploy",) * 5 + ("return",) * 2
NUMBERS = {
    "port": (1024, 9999),
    "replicas": (10, 99),
    "timeout_ms": (1000, 99999),
    "memory_mb": (128, 8192),
    "retry_after_ms": (100, 9999),
    "queue_depth": (1000, 9999),
    "max_clients": (100, 9999),
    "grace_s": (10, 99),
}
WRITES = ("set_value", "drain")
STEPS = ("pulled layer", "checked layer", "unpacked layer", "linked layer", "started probe of", "waited for probe of")


class World(Base):  # type: ignore[misc]  # the base is of ../shared
    """The services, the nodes, the logs, and what was asked for."""

    name = "fleet"
    goal = "every order of the operator done"
    tools = [  # noqa: RUF012  as the runner wants them
        tool("show_service", "The manifest of a service.", "service"),
        tool("list_nodes", "The nodes of a region.", "region"),
        tool("deploy", "Deploy a build of a service; answers with the log.", "service", "build"),
        tool("deploy_log", "The log of an earlier deployment.", "service", "build"),
        tool("set_value", "Change one value of a manifest.", "service", "key", "value"),
        tool("drain", "Take a node out of service.", "node"),
    ]
    reads = ("show_service", "list_nodes", "deploy_log")

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        r = self.random
        self.manifests: dict[str, dict[str, str]] = {}
        for n in range(SERVICES):
            name = f"{r.choice(('auth', 'cart', 'mail', 'pay', 'seek', 'sync'))}-{n:02d}{r.choice('abcdefgh')}"
            self.manifests[name] = {key: str(r.randint(*ends)) for key, ends in NUMBERS.items()} | {
                "image": self._digest(),
                "owner": f"team-{r.randint(10, 99)}",
                "on_call": f"p{r.randint(1000, 9999)}@fleet.example",
                "region": f"region-{r.randrange(REGIONS)}",
                "host": f"{name}.internal.fleet.example",
                "log_level": r.choice(("debug", "info", "warn")),
            }
        self.nodes = {
            f"region-{n}": [
                (
                    f"node-{n}{k:02d}-{r.randint(100, 999)}",
                    f"10.{r.randint(0, 99)}.{r.randint(0, 255)}.{r.randint(1, 254)}",
                )
                for k in range(NODES)
            ]
            for n in range(REGIONS)
        }
        self.logs: dict[tuple[str, str], str] = {}
        self.digests: dict[tuple[str, str], str] = {}
        self.orders = list(self._orders())
        self.at = 0
        self.did: list[tuple[str, dict[str, str]]] = []
        self.ends: list[str] = []

    def _digest(self) -> str:
        return f"sha256:{self.random.getrandbits(96):024x}"

    def _orders(self) -> Iterator[tuple[str, list[tuple[str, dict[str, str]]]]]:
        """(what is said, the calls that are right), one an order; the values as they will be by then."""
        r = self.random
        now = {name: dict(values) for name, values in self.manifests.items()}
        deployed: list[tuple[str, str]] = []
        hot = r.sample(list(now), 5)
        for n in range(TASKS):
            kind = r.choice(KINDS)
            one, other = r.sample(hot if r.random() < 0.6 else list(now), 2)
            key = r.choice(list(NUMBERS))
            if kind == "copy":
                yield f"Set {key} of {one} to that of {other}.", [set_value(one, key, now[other][key])]
                now[one][key] = now[other][key]
            elif kind == "swap":
                mine, theirs = now[one][key], now[other][key]
                yield f"Swap {key} of {one} and {other}.", [set_value(one, key, theirs), set_value(other, key, mine)]
                now[one][key], now[other][key] = theirs, mine
            elif kind == "drain":
                region = r.choice(list(self.nodes))
                node, address = r.choice(self.nodes[region])
                yield f"Drain the node of {region} that has the address {address}.", [("drain", {"node": node})]
            elif kind == "deploy" or not deployed:
                key_of = (one, str(100 + n))
                deployed.append(key_of)
                self.digests[key_of] = self._digest()
                self.logs[key_of] = self._log(*key_of)
                now[one]["image"] = self.digests[key_of]
                said = f"Deploy build {key_of[1]} of {one} and put the digest that it ends with into its image."
                yield said, [set_value(one, "image", self.digests[key_of])]
            else:
                key_of = r.choice(deployed)
                now[key_of[0]]["image"] = self.digests[key_of]
                said = f"Put the digest of build {key_of[1]} of {key_of[0]} into its image again."
                yield said, [set_value(key_of[0], "image", self.digests[key_of])]

    def _log(self, service: str, build: str) -> str:
        r = self.random
        lines = [f"deployment of {service}, build {build}"]
        lines += [
            f"{k:03d} {r.choice(STEPS)} {r.getrandbits(48):012x} of {service} in {r.randint(10, 9999)} ms"
            for k in range(r.randint(80, 130))
        ]
        return "\n".join([*lines, f"build {build} of {service} is out: digest {self.digests[service, build]}"])

    def system(self) -> str:
        return "You keep a fleet of services for an operator, order by order. Change only what is asked."

    def opening(self) -> str:
        return f"Order {self.at}: {self.orders[self.at][0]}"

    def call(self, name: str, args: dict[str, str]) -> str:
        if name == "show_service":
            found = self.manifests.get(args["service"])
            return "\n".join(f"{k}: {v}" for k, v in found.items()) if found else "no such service"
        if name == "list_nodes":
            rows = [
                f"{node:<16}{address:<18}{'ready':<10}{len(node) * 7:>6}"
                for node, address in self.nodes[args["region"]]
            ]
            return "\n".join([f"{'NODE':<16}{'ADDRESS':<18}{'STATE':<10}{'PODS':>6}", *rows])
        if name in ("deploy", "deploy_log"):
            return self.logs.get((args["service"], args["build"]), "no such build")
        self.did.append((name, args))
        right = self.orders[self.at][1]
        if (name, args) not in right:
            self.slip = f"{name} with wrong values"
            self.failed_edits += 1
        if name == "set_value":
            self.manifests[args["service"]][args["key"]] = args["value"]
        return "done"

    def reply(self, text: str) -> str | None:
        right = self.orders[self.at][1]
        done = sorted(map(repr, self.did)) == sorted(map(repr, right))
        self.ends.append("right" if done else "wrong" if self.did else "lost")
        self.at, self.did = self.at + 1, []
        return self.opening() if self.at < TASKS else None

    def judge(self) -> Verdict:
        return Verdict(TASKS, TASKS - len(self.ends) + self.ends.count("lost"), self.ends.count("wrong"))


def set_value(service: str, key: str, value: str) -> tuple[str, dict[str, str]]:
    """The call that changes one value."""
    return "set_value", {"service": service, "key": key, "value": value}


def value_of(mind: Mind, service: str, key: str) -> tuple[str, str] | None:
    """(the value, what it rests on) as the newest of what the prompt says: a manifest, or the agent's own change."""
    changed = next((n for n in mind.own("set_value") if (n[1].get("service"), n[1].get("key")) == (service, key)), None)
    for seen in mind.results("show_service"):
        if seen.args.get("service") != service or seen.dated or (changed and changed[0] > seen.at):
            continue
        for row in seen.rows:
            found = re.search(rf"(?<!\w){key}: (\S+?)(?=[;,]?(?:\s|$))", row.text)
            if found:
                return found[1], seen.via if row.via == "plain" else row.via
    return (str(changed[1].get("value")), "plain") if changed else None


def digest_of(mind: Mind, service: str, build: str) -> tuple[str, str] | None:
    """(the digest that a log ends with, what it rests on)"""
    for seen in mind.results("deploy", "deploy_log"):
        for row in seen.rows:
            found = re.search(rf"build {build} of {service} is out: digest (\S+)$", row.text)
            if found:
                return found[1], seen.via if row.via == "plain" else row.via
    return None


def node_of(mind: Mind, region: str, address: str) -> tuple[str, str] | None:
    """(the node that has an address, what it rests on)"""
    tables: list[Seen] = [seen for seen in mind.results("list_nodes") if seen.args.get("region") == region]
    for seen in tables:
        for row in seen.rows:
            found = re.search(rf"(node-\S+)\s+{re.escape(address)}(?!\d)", row.text)
            if found:
                return found[1], seen.via if row.via == "plain" else row.via
    return None


def together(mind: Mind, wanted: list[tuple[str, dict[str, str]]]) -> Action:
    """Several lookups in one answer, each as the temperament has it."""
    made = [mind.get(name, **args) for name, args in wanted]
    return Action([one for action in made for one in action.calls], basis=made[0].basis)


def act(mind: Mind) -> Action:
    """The next step, from the prompt alone."""
    orders = [(at, found) for at, text in mind.users if (found := re.search(r"Order (\d+): (.*)", text, re.DOTALL))]
    if not orders:
        return Action(text="What is to be done?")
    mind.task_from, order = orders[-1]
    number, said = order[1], order[2].strip()
    if any(at > mind.task_from and name in WRITES for at, name, _ in mind.calls):
        return Action(text=f"Order {number} is done.")
    if found := re.match(r"Set (\w+) of (\S+) to that of (\S+)\.$", said):
        key, one, other = found.groups()
        value = value_of(mind, other, key)
        if value is None:
            return together(mind, [("show_service", {"service": other})])
        return call("set_value", value[1], service=one, key=key, value=value[0])
    if found := re.match(r"Swap (\w+) of (\S+) and (\S+)\.$", said):
        return swap(mind, *found.groups())
    if found := re.match(r"Drain the node of (\S+) that has the address (\S+)\.$", said):
        node = node_of(mind, *found.groups())
        if node is None:
            return together(mind, [("list_nodes", {"region": found[1]})])
        return call("drain", node[1], node=node[0])
    return put_image(mind, said)


def swap(mind: Mind, key: str, one: str, other: str) -> Action:
    """Both values, and both changes."""
    mine, theirs = value_of(mind, one, key), value_of(mind, other, key)
    missing = [name for name, value in ((one, mine), (other, theirs)) if value is None]
    if mine is None or theirs is None:
        return together(mind, [("show_service", {"service": name}) for name in missing])
    basis = mine[1] if mine[1] != "plain" else theirs[1]
    return Action([set_value(one, key, theirs[0]), set_value(other, key, mine[0])], basis=basis)


def put_image(mind: Mind, said: str) -> Action:
    """Deploy, or look into an earlier log, and put the digest where it belongs."""
    found = re.match(r"(?:Deploy build|Put the digest of build) (\d+) of (\S+) (?:and|into)", said)
    if found is None:
        return Action(text="That is not clear.")
    build, service = found.groups()
    digest = digest_of(mind, service, build)
    if digest is not None:
        return call("set_value", digest[1], service=service, key="image", value=digest[0])
    args: dict[str, Any] = {"service": service, "build": build}
    if said.startswith("Deploy") and not any(n > mind.task_from for n, _ in mind.own("deploy")):
        return call("deploy", **args)
    return together(mind, [("deploy_log", args)])


def state(mind: Mind) -> list[str]:
    """Truthful facts for a note: what was changed last."""
    return [f"{args['key']} of {args['service']} = {args['value']}" for _, args in mind.own("set_value")][:40]

"""A Dockerfile's steps run without a Docker engine: each stage in a folder that debootstrap made, by chroot.

Only what ours uses: FROM of one Debian release, RUN, COPY, ENV, WORKDIR, USER, and what is data (LABEL, EXPOSE and so
on). Needs root, debootstrap and a Debian mirror.
"""

from __future__ import annotations

import re
import shlex
import shutil
import string
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

SLIM = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "usr/share/lintian", "var/cache/apt",
        "var/lib/apt/lists")  # fmt: skip
"""Files that the -slim images leave out."""

HOST_FILES = {
    "etc/ssl/certs/ca-certificates.crt": "machine-ca.crt",
    "etc/resolv.conf": "etc/resolv.conf",
    "etc/hosts": "etc/hosts",
    "etc/pip.conf": "etc/pip.conf",
}
"""Variables by which this machine reaches its package index. The build of an engine gets them from its daemon."""


def instructions(text: str) -> list[tuple[str, str]]:
    """(word, the rest) of each instruction, continued lines joined, comments out."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n", " ", lines)
    return [(word.upper(), rest.strip()) for word, _, rest in (x.partition(" ") for x in joined.splitlines() if x)]


@dataclass
class Stage:
    """A root folder and what the instructions have set."""

    root: Path
    env: dict[str, str] = field(default_factory=lambda: {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"})
    workdir: str = "/"
    user: str = "0:0"
    settings: dict[str, str] = field(default_factory=dict)

    def command(self, *words: str) -> list[str]:
        """The command line that runs this inside."""
        env = [f"{k}={v}" for k, v in self.env.items()]
        inside = f"cd {shlex.quote(self.workdir)} && exec {shlex.join(words)}"
        return ["chroot", f"--userspec={self.user}", str(self.root), "/usr/bin/env", "-i", *env, "sh", "-c", inside]

    def run(self, *words: str) -> str:
        """Its output; CalledProcessError with both streams where it fails."""
        done = subprocess.run(self.command(*words), capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout

    def path(self, inside: str) -> Path:
        return self.root / (inside if inside.startswith("/") else f"{self.workdir}/{inside}").lstrip("/")


def build(dockerfile: Path, context: Path, folder: Path, env: dict[str, str]) -> Stage:
    """The last stage, built. env: what a build on this machine needs beside (never part of the image)."""
    made: dict[str, Stage] = {}
    stage = Stage(folder)
    for word, rest in instructions(dockerfile.read_text()):
        if word == "FROM":
            found = re.fullmatch(r"debian:(\w+)-slim(?: AS (\w+))?", rest)
            assert found, rest
            name = found.group(2) or "last"
            stage = made[name] = Stage(folder / name)
            debian(found.group(1), stage.root, folder)
        elif word == "RUN":
            stage.env |= env
            stage.run("sh", "-ec", rest)
            stage.env = {k: v for k, v in stage.env.items() if k not in env}
        elif word == "COPY":
            copy(stage, rest, context, made)
        elif word == "ENV":
            for pair in shlex.split(rest):
                key, _, value = pair.partition("=")
                stage.env[key] = string.Template(value).safe_substitute(stage.env)
        elif word == "WORKDIR":
            stage.workdir = rest
            stage.path(rest).mkdir(parents=True, exist_ok=True)
        elif word == "USER":
            stage.user = rest
        else:
            stage.settings[word] = rest
    return stage


def debian(release: str, root: Path, folder: Path) -> None:
    """A minimal Debian; made once for all stages."""
    base = folder / f"base-{release}"
    if not base.exists():
        command = ["debootstrap", "--variant=minbase", release, str(base), "http://deb.debian.org/debian"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        for name, inside in HOST_FILES.items():
            if Path("/", name).exists():
                shutil.copy(Path("/", name), base / inside)
    subprocess.run(["cp", "-a", str(base), str(root)], check=True)


def copy(stage: Stage, rest: str, context: Path, made: dict[str, Stage]) -> None:
    """COPY [--from=STAGE] [--chown=U:G] SOURCE... TARGET"""
    words = shlex.split(rest)
    options = dict(w[2:].split("=") for w in words if w.startswith("--"))
    *sources, target = [w for w in words if not w.startswith("--")]
    source_root = made[options["from"]].root if "from" in options else context
    for source in sources:
        origin = source_root / source.lstrip("/")
        there = stage.path(target)
        if origin.is_dir() or not target.endswith("/"):
            there.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-aT", str(origin), str(there)], check=True)
        else:
            there.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-a", str(origin), str(there)], check=True)
        if "chown" in options:
            subprocess.run(["chown", "-R", options["chown"], str(there)], check=True)


def megabytes(stage: Stage) -> float:
    """The files that the image would hold, without those that the slim base leaves out."""
    for name in SLIM:
        shutil.rmtree(stage.root / name, ignore_errors=True)
    done = subprocess.run(["du", "-s", "--block-size=1", str(stage.root)], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0]) / 1e6

"""An env's command as a fork server runs it: looked at once, then begun in each fork as a new interpreter would begin.

Runs in the env's own interpreter: standard library only.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import gc
import importlib
import os
import runpy
import shutil
import signal
import sys
import types
from importlib.machinery import SourceFileLoader
from typing import Any


class Program:
    """The words of a command, behind the interpreter and its options where it names one (`python`).

    `kind` is script, module, code, or `command`: what is no Python of this interpreter and is executed anew.
    """

    def __init__(self, words: list[str], *, python: bool, workdir: str) -> None:
        self.words = words
        self.workdir = workdir
        self.code: Any = None
        self.script = ""
        self.kind = "command"
        if not python:
            self._find_script()
        elif words[:1] == ["-m"] and len(words) > 1:
            self.kind = "module"
        elif words[:1] == ["-c"] and len(words) > 1:
            self.kind = "code"
        elif words:
            self.kind, self.script = "script", os.path.join(workdir, words[0])

    def interpreter(self) -> str | None:
        """The Python that the command's first line asks for, when that is another one than this."""
        path = shutil.which(self.words[0]) if self.kind == "command" else None
        asked = _shebang(path)
        return asked if asked and not _is_this_python(asked) else None

    def imports(self) -> list[str]:
        """The modules that the script itself imports first: what to import ahead when nothing else is said."""
        if self.kind != "script":
            return []
        try:
            with open(self.script, "rb") as file:
                tree = ast.parse(file.read())
        except (OSError, SyntaxError, ValueError):
            return []
        own = os.path.dirname(self.script)
        names = []
        for node in tree.body:
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.append(node.module)
        return [name for name in names if not _lies_in(own, name.partition(".")[0])]

    def look(self) -> None:
        """Compile the script ahead. What is wrong with it shows in the fork, as it would in a plain start."""
        if self.kind != "script" or os.path.isdir(self.script):
            return
        with contextlib.suppress(OSError, SyntaxError, ValueError), open(self.script, "rb") as file:
            self.code = compile(file.read(), self.script, "exec", dont_inherit=True)

    def show_modules(self, folder: str) -> None:
        """Put the folder first in which the command's own modules are looked for."""
        if getattr(sys.flags, "safe_path", False) or sys.flags.isolated:
            return
        if self.kind == "script":
            sys.path[0] = os.path.dirname(os.path.realpath(self.script))
        else:
            sys.path[0] = "" if self.kind == "code" else folder

    def enter(self, folder: str) -> None:
        """In the fork, in its working folder, a copy of the original: become a new interpreter, as far as can be."""
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if self.script:
            self.script = _moved(self.script, self.workdir, folder)
        sys.argv[:] = self.words if self.kind == "script" else [self.words[0], *self.words[2:]]
        self.show_modules(folder)
        if hasattr(sys, "orig_argv"):
            sys.orig_argv[:] = [sys.executable, *self.words]
        _renew_modules()
        gc.enable()

    def run(self) -> None:
        """Never to be called below code of the server's: what it raises ends the interpreter."""
        if self.kind == "module":
            runpy.run_module(self.words[1], run_name="__main__", alter_sys=True)
            return
        if self.kind == "script" and os.path.isdir(self.script):
            runpy.run_path(self.script, run_name="__main__")
            return
        main = types.ModuleType("__main__")
        main.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = main
        code = self.code
        if self.kind == "code":
            code = compile(self.words[1], "<string>", "exec", dont_inherit=True)
        else:
            main.__file__ = os.path.abspath(self.script)
            main.__loader__ = SourceFileLoader("__main__", main.__file__)
            if code is None:
                with open(self.script, "rb") as file:
                    code = compile(file.read(), self.script, "exec", dont_inherit=True)
        exec(code, main.__dict__)

    def _find_script(self) -> None:
        """A console script of this interpreter is run in place."""
        path = shutil.which(self.words[0])
        asked = _shebang(path)
        if path is not None and asked and _is_this_python(asked):
            self.kind, self.script = "script", path
            self.words = [path, *self.words[1:]]


def preload(names: list[str], *, needed: bool) -> list[str]:
    """Import modules; what could not be imported, with the reason, unless it is not `needed` anyway."""
    failed = []
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            if needed:
                failed.append(f"{name}: {type(error).__name__}: {error}")
    return failed


def _renew_modules() -> None:
    """What modules took from their surroundings when they were imported. `random` sees to itself."""
    if (tempfile := sys.modules.get("tempfile")) is not None:
        tempfile.tempdir = None  # type: ignore[attr-defined]
    if (process := sys.modules.get("multiprocessing.process")) is not None:
        process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]
        process.current_process().authkey = os.urandom(32)
    if (random := sys.modules.get("numpy.random")) is not None:
        random.seed()


def _moved(path: str, old: str, new: str) -> str:
    within = os.path.normpath(path)
    if old != "/" and within.startswith(old.rstrip("/") + "/"):
        return os.path.join(new, os.path.relpath(within, old))
    return within


def _lies_in(folder: str, name: str) -> bool:
    return os.path.exists(os.path.join(folder, name)) or os.path.exists(os.path.join(folder, f"{name}.py"))


def _shebang(path: str | None) -> str | None:
    """The Python named in a script's first line, or None."""
    try:
        with open(path or "", "rb") as file:
            line = file.readline(512)
    except OSError:
        return None
    words = os.fsdecode(line[2:]).split() if line.startswith(b"#!") else []
    if words and os.path.basename(words[0]) == "env":
        words = [found] if len(words) > 1 and (found := shutil.which(words[1])) else []
    return words[0] if words and os.path.basename(words[0]).startswith("python") else None


def _is_this_python(path: str) -> bool:
    """Links are not followed: a venv's interpreter is a link to one that knows nothing of the venv."""
    if os.path.dirname(os.path.abspath(path)) != os.path.dirname(os.path.abspath(sys.executable)):
        return False
    return os.path.realpath(path) == os.path.realpath(sys.executable)

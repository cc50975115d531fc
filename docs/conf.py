"""How Sphinx builds the documentation: Markdown pages, and the reference from docstrings."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

from tidegate._core import compiled

project = "Tidegate"
author = "The Tidegate authors"
copyright = "The Tidegate authors"
release = installed_version("tidegate")
version = release

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["deflist", "colon_fence"]
myst_heading_anchors = 3
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"Tidegate {release}"
html_copy_source = False
html_show_sourcelink = False

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
# Shown by their short names; the pages of the reference say what they stand for.
_ALIASES = ("Wait", "Signal", "FileLike", "MemoryKind", "Workgroups", "Bytes", "Point", "npt.DTypeLike")
autodoc_type_aliases = {alias: alias for alias in _ALIASES}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
python_use_unqualified_type_names = True

default_role = "code"  # single backquotes in docstrings mean code

nitpicky = True
# The standard library and NumPy are not part of these pages, and no build may need the network
# to fetch their inventories, so names of theirs stay plain text.
nitpick_ignore_regex = [
    (r"py:.*", r"(builtins|collections|contextlib|ctypes|enum|os|pathlib|threading|types|typing|weakref)(\..*)?"),
    (r"py:.*", r"(asyncio|concurrent|inspect|io|numbers|pytest|trio)(\..*)?"),
    (r"py:.*", r"(np|numpy|npt)(\..*)?"),
    (r"py:.*", r"[a-z_]+"),  # built-in types, parameter names in backquotes and words of prose types
    (r"py:.*", r"[A-Z][A-Za-z]*(Error|Exception|Interrupt)"),  # built-in exceptions; ours are found before this
    (r"py:.*", r"([A-Za-z_.]*\.)?_[A-Za-z]\w*"),  # private aliases in signatures
    (r"py:.*", "|".join(_ALIASES)),
    (r"py:.*", r"(Any|Callable|Iterable|Iterator|Sequence|Mapping|Self|Literal|TypeVar|T|P|Path|Ellipsis|\.\.\.)"),
]


def _door_of(target: str) -> str | None:
    """Where users reach what a signature names by the private module that defines it."""
    name = target.rpartition(".")[2]
    for door in ("tidegate", "tidegate.driver", "tidegate.lowlevel", "tidegate.testing", "tidegate.conformance"):
        if name in getattr(importlib.import_module(door), "__all__", ()):
            return f"{door}.{name}"
    return None


def _resolve_private_home(app: Any, env: Any, node: Any, contnode: Any) -> Any:
    """Link ``tidegate._core.buffer.Buffer`` in a signature to the public ``tidegate.Buffer``."""
    if node.get("refdomain") != "py":
        return None
    public = _door_of(node.get("reftarget", ""))
    if public is None:
        return None
    domain = env.get_domain("py")
    found = domain.objects.get(public)
    if found is None:
        return None
    from sphinx.util.nodes import make_refnode

    return make_refnode(app.builder, node.get("refdoc", ""), found.docname, found.node_id, contnode, public)


# What users never construct: the names say who makes them, and a constructor's signature would only mislead.
_MADE_BY_OTHERS = {
    *("Device", "Queue", "Lane", "Submission", "Pool", "StagingRange"),
    *("Timepoint", "Subscription", "Buffer", "BufferView"),
    *("CommandBuffer", "Node", "Executable", "Function"),
}


_STUB = {
    (owner.name, member.name): member
    for module in [ast.parse(Path(compiled.__file__).with_name("compiled.pyi").read_text(encoding="utf-8"))]
    for owner in [ast.ClassDef(compiled.__name__, body=module.body), *module.body]
    if isinstance(owner, ast.ClassDef)
    for member in owner.body
    if isinstance(member, ast.FunctionDef)
}
"""The functions of the compiled core's stub, by class or module and name: they have the types."""


def _typed_signature(obj: Any) -> tuple[str, str | None] | None:
    """Return the signature of a compiled function, method or class as its stub has it."""
    owner, name = getattr(obj, "__objclass__", None) or getattr(obj, "__module__", ""), getattr(obj, "__name__", "")
    if inspect.isclass(obj) and obj.__module__ == compiled.__name__:
        owner, name = obj, "__init__"
    found = _STUB.get((getattr(owner, "__name__", owner), name))
    if found is None:
        return None
    arguments = found.args
    arguments.args = [argument for argument in arguments.args if argument.arg != "self"]
    if any(argument.arg.startswith("_") for argument in arguments.kwonlyargs):  # for ourselves
        arguments.kwonlyargs, arguments.kw_defaults = [], []
    returns = ast.unparse(found.returns) if found.returns is not None and name != "__init__" else None
    return tuple(text and re.sub(r"\b_(?=[A-Z])", "", text) for text in (f"({ast.unparse(arguments)})", returns))


def _tidy_signature(
    app: Any, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None] | None:
    """Drop constructors that nobody calls, and write an alias inside of another type by its name alone."""
    if signature is None:
        return None
    if what == "class" and name.rpartition(".")[2] in _MADE_BY_OTHERS:
        return ("", None)
    typed = _typed_signature(obj)
    if typed is not None:
        return typed
    return tuple(text and re.sub(r"TypeAliasForwardRef\('([^']*)'\)", r"\1", text) for text in (signature, returns))


def _keep_colons(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Keep Napoleon from taking the words before a colon in a one-line docstring for a type."""
    if what in ("attribute", "property", "data") and lines:
        lines[0] = ":" + lines[0]


def _link_rules(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Lead from a rule that a docstring cites to its words; the reference lies one folder below the model."""
    for index, (line, below) in enumerate(zip(lines, [*lines[1:], ""], strict=True)):
        if not below.startswith("---"):  # a heading must not outgrow its line
            lines[index] = re.sub(r"(?<![`\w])M(\d+)\b(?!`)", r"`M\1 <../model.html#m\1>`__", line)


def setup(app: Any) -> dict[str, bool]:
    """Add what Sphinx cannot know of this package."""
    app.connect("missing-reference", _resolve_private_home)
    app.connect("autodoc-process-signature", _tidy_signature)
    app.connect("autodoc-process-docstring", _keep_colons, priority=100)  # before Napoleon, which has 500
    app.connect("autodoc-process-docstring", _link_rules)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

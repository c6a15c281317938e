"""Reading a command line the way a shell would split it, well enough to see which programs it names.

It never expands, substitutes or runs anything; what it can't understand it reports as not understood.
"""

from __future__ import annotations

import re
import shlex

OPERATORS = frozenset({"&&", "||", ";", "|", "&", "|&", "\n", ";;"})
_BUILTINS = frozenset(
    [
        ".",
        ":",
        "[[",
        "alias",
        "break",
        "case",
        "cd",
        "command",
        "continue",
        "eval",
        "exec",
        "exit",
        "export",
        "for",
        "function",
        "if",
        "read",
        "return",
        "set",
        "shift",
        "source",
        "trap",
        "type",
        "ulimit",
        "umask",
        "unset",
        "until",
        "wait",
        "while",
    ]
)
_PLAIN = frozenset("|&;<>()$`*?[]{}~#!\n")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


def needs_shell(line: str) -> bool:
    """Whether only a shell can run this line: an operator, an expansion, an assignment or a builtin stands in it."""
    quote = ""
    escaped = False
    for char in line:
        if escaped:
            escaped = False
        elif char == "\\" and quote != "'":
            escaped = True
        elif quote:
            if char == quote:
                quote = ""
            elif quote == '"' and char in "$`":
                return True
        elif char in "'\"":
            quote = char
        elif char in _PLAIN:
            return True
    if quote or escaped:
        return True
    words = line.split()
    return bool(words) and (words[0] in _BUILTINS or _ASSIGNMENT.match(words[0]) is not None)


def is_shell_word(word: str) -> bool:
    """Whether a shell itself understands this word, so that no program of that name is needed; or must expand it."""
    return word in _BUILTINS or word.startswith(("$", "`", "~", "(", "{")) or word in {"[", "echo", "printf", "test"}


def simple_commands(line: str) -> tuple[tuple[str, ...], ...]:
    """The words of each simple command of a line, in order; empty when the line can't be read."""
    found: list[tuple[str, ...]] = []
    words: list[str] = []
    skip = False
    for token in _tokens(line):
        if skip:
            skip = False
        elif token in OPERATORS or set(token) <= set("();&|\n"):
            _flush(words, found)
        elif set(token) <= set("<>&") and token:
            if words and words[-1].isdigit():
                words.pop()  # the file descriptor of a redirection
            skip = True
        else:
            words.append(token)
    _flush(words, found)
    return tuple(found)


def _tokens(line: str) -> list[str]:
    lexer = shlex.shlex(line.replace("\\\n", " "), posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace = " \t\r"
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return list(lexer)
    except ValueError:
        return []


def _flush(words: list[str], found: list[tuple[str, ...]]) -> None:
    while words and words[0] in {"if", "then", "else", "elif", "while", "until", "do", "!", "{", "time"}:
        words.pop(0)
    if words and words[0] not in {"fi", "done", "esac", "}"}:
        found.append(tuple(words))
    words.clear()


def split_assignments(words: tuple[str, ...]) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """The leading `NAME=value` words of a simple command, and the command."""
    count = 0
    while count < len(words) and _ASSIGNMENT.match(words[count]):
        count += 1
    pairs = tuple((word.partition("=")[0], word.partition("=")[2]) for word in words[:count])
    return pairs, words[count:]

"""Other languages: each catalogue says everything that people may see, is compiled, and costs English nothing."""

from __future__ import annotations

import gettext
import io
import subprocess
import sys

import pytest

from loopx.presentation import i18n
from loopx.presentation.renderers import page_words, words
from scripts import catalogues


def test_every_catalogue_is_compiled_and_says_nearly_everything() -> None:
    """What is new is said in English until it is translated: `scripts/catalogues.py --check` names each such text."""
    wanted = catalogues.texts()
    untranslated = "no translation of", "nobody says"
    assert [one for one in catalogues.problems() if not any(word in one for word in untranslated)] == []
    for path in catalogues.sources():
        known = {key for key, text in catalogues.read(path).items() if text}
        assert len(wanted & known) >= 0.95 * len(wanted)


def test_the_compiled_form_is_what_the_standard_library_reads() -> None:
    source = {"": "Content-Type: text/plain; charset=UTF-8\n", "one": "eins", "two": "", "{n} of it": "{n} davon"}
    read = gettext.GNUTranslations(io.BytesIO(catalogues.compiled(source)))
    assert [read.gettext(word) for word in ("one", "two", "{n} of it", "three")] == [
        "eins",
        "two",
        "{n} davon",
        "three",
    ]


@pytest.mark.parametrize(
    ("env", "language"),
    [
        ({}, "en"),
        ({"LANG": "C.UTF-8"}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "en_US.UTF-8"}, "en"),
        ({"LOOPX_LANG": "zh", "LANG": "en_US.UTF-8"}, "zh"),
        ({"LOOPX_LANG": "xx"}, "en"),
        ({"LOOPX_LANG": "../../etc"}, "en"),
    ],
)
def test_the_environment_decides(env: dict[str, str], language: str) -> None:
    assert i18n.language(env) == language


def test_words_are_said_in_the_readers_language(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPX_LANG", "zh")
    assert words.word(words.REASONS, "false_completion") == "它声称已完成,但检查未通过"
    assert words.count(3, "turn") == "3 轮"
    assert words.ago(0, 60_000) == "1 m 前"
    assert words.word(page_words.RULES, "gate_blocks") == "被一个问题阻塞"
    assert words.word(words.REASONS, "newer_than_this") == "newer_than_this"


def test_english_opens_no_catalogue() -> None:
    script = (
        "import sys; from loopx.presentation.renderers import words; "
        "words.word(words.REASONS, 'blocker'); sys.exit('gettext' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-S", "-c", script], env={"PYTHONPATH": ":".join(sys.path)}, check=False)
    assert done.returncode == 0

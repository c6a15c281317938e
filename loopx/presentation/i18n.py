"""Which language people read, and the words of it: English is the source, and the other languages are catalogues.

`LOOPX_LANG` decides, else the locale of the environment. English costs nothing: no catalogue is opened and nothing is
imported for it. A text without a translation is shown in English, because a missing word is better than a wrong one.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SOURCE = "en"
VARIABLES = ("LOOPX_LANG", "LC_ALL", "LC_MESSAGES", "LANG")
LOCALES = os.path.join(os.path.dirname(__file__), "locales")

_catalogues: dict[str, Callable[[str], str]] = {}


def language(env: Mapping[str, str] = os.environ) -> str:
    """The two letters of the language to speak: `en`, or one that there is a catalogue for."""
    for name in VARIABLES:
        value = env.get(name, "")
        if value:
            wanted = value.replace("-", "_").partition("_")[0].partition(".")[0].lower()
            return wanted if wanted != SOURCE and os.path.exists(_path(wanted)) else SOURCE
    return SOURCE


def translate(text: str) -> str:
    """The text in the reader's language; an empty text stays empty."""
    wanted = language()
    if wanted == SOURCE or not text:
        return text
    known = _catalogues.get(wanted)
    if known is None:
        known = _catalogues[wanted] = _open(wanted)
    return known(text)


def _path(wanted: str) -> str:
    # A language is letters only, so that no variable can name a file elsewhere.
    return os.path.join(LOCALES, wanted if wanted.isalpha() else SOURCE, "LC_MESSAGES", "loopx.mo")


def _open(wanted: str) -> Callable[[str], str]:
    import gettext

    with open(_path(wanted), "rb") as file:
        return gettext.GNUTranslations(file).gettext

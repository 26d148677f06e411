"""Finds the function that turns a language's text into phonemes: a user's package, or the built-in English.

A package provides a language through the entry point group `omnipipeline.phonemes`. The entry point's name is the
language as the voice's file names it ("de", "en-gb"), or its first part; the value is "module:function". The function
gets a sentence and returns its phonemes as the voice was trained on them, for Piper the IPA of espeak-ng. So code
under a licence such as the GPL stays in an image of the user's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Final

from omni_stage.errors import ConfigurationError
from omni_stage.models.voice.text.english import English

ENTRY_POINT_GROUP: Final = "omnipipeline.phonemes"
DICTIONARY: Final = "cmudict.dict"
DICTIONARY_VARIABLE: Final = "OMNI_VOICE_DICTIONARY"
"""Environment variable with the path of the English dictionary, for voices without one in their folder."""

Phonemizer = Callable[[str], str]


def find_phonemizer(language: str, folder: Path, plugins: Iterable[EntryPoint] | None = None) -> Phonemizer:
    """Returns the phonemizer of a language such as "en-us". A package of the user's takes precedence.

    `folder`: the voice's, which may hold the English dictionary. Raises ConfigurationError.
    """
    names = dict.fromkeys((language.lower(), language.lower().split("-")[0]))
    known = {item.name: item for item in (entry_points(group=ENTRY_POINT_GROUP) if plugins is None else plugins)}
    for name in names:
        if name in known:
            return _load(known[name])
    if "en" in names:
        return English.load(find_dictionary(folder))
    raise ConfigurationError(
        f"the voice speaks {language[:40]!r}, for which no package provides phonemes; English is built in, and other "
        f"languages need a package with an entry point of the group {ENTRY_POINT_GROUP}",
        field="model.path",
    )


def find_dictionary(folder: Path) -> Path:
    """Returns the English dictionary: the one in the voice's folder, else the image's. Raises ConfigurationError."""
    places = [folder / DICTIONARY]
    if os.environ.get(DICTIONARY_VARIABLE):
        places.append(Path(os.environ[DICTIONARY_VARIABLE]))
    for place in places:
        if place.is_file():
            return place
    raise ConfigurationError(
        f"an English voice needs the CMU Pronouncing Dictionary; put {DICTIONARY} next to the voice in {folder}, or "
        f"name a file in {DICTIONARY_VARIABLE}",
        field="model.path",
    )


def _load(plugin: EntryPoint) -> Phonemizer:
    try:
        function: Phonemizer = plugin.load()
    except Exception as error:  # a package may raise anything when it is imported
        raise ConfigurationError(
            f"cannot load the phonemes of {plugin.name!r} from {plugin.value}: {type(error).__name__}: {error}",
            field="model.path",
        ) from error
    if not callable(function):
        raise ConfigurationError(f"the phonemes of {plugin.name!r}, {plugin.value}, are not a function")
    return function

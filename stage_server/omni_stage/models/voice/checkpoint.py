"""Reads a voice's folder: Piper's (NAME.onnx and NAME.onnx.json) or transformers' VITS (config.json, vocab.json); and
finds the function that turns its language's text into phonemes: a user's package, or the built-in English.

A package provides a language through the entry point group `omnipipeline.phonemes`. The entry point's name is the
language as the voice's file names it ("de", "en-gb"), or its first part; the value is "module:function". The function
gets a sentence and returns its phonemes as the voice was trained on them, for Piper the IPA of espeak-ng. So code
under a licence such as the GPL stays in an image of the user's.
"""

from __future__ import annotations

import json
import os
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final

from transformers import VitsConfig

from omni_stage.errors import ConfigurationError
from omni_stage.models.shared.config_file import read_config, read_if_there
from omni_stage.models.voice.text.english import English
from omni_stage.models.voice.text.numbers import normalize
from omni_stage.models.voice.text.symbols import SymbolTable, VoiceReader

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


DEFAULT_VOICE: Final = "default"
"""Name of the only voice of a checkpoint that names none."""
_RATES: Final = range(4000, 96_001)
_MAX_SPEAKERS: Final = 4096
_SPEEDS: Final = (0.05, 20.0)
"""Slowest and fastest voice, as a factor of the durations."""
_ENGLISH: Final = ("eng", "en", "en-us", "en-gb")


@dataclass(frozen=True, slots=True)
class VoiceCheckpoint:
    """What a voice's files say, without its weights."""

    path: Path
    onnx: Path | None
    """A Piper voice's weights; None if the folder is in transformers' format."""
    settings: Mapping[str, Any]
    """The content of NAME.onnx.json, or of config.json."""
    sample_rate_hz: int
    voices: tuple[str, ...]
    """Names of the speakers, in the order of their ids."""
    noise: float
    """Scale of the noise in the audio."""
    noise_of_durations: float
    length: float
    """Factor of the durations."""


def read_checkpoint(path: str | Path) -> VoiceCheckpoint:
    """Returns the facts of a voice's folder. Raises ConfigurationError."""
    folder = Path(path)
    files = sorted(folder.glob("*.onnx"))
    if len(files) > 1:
        raise ConfigurationError(
            f"{folder} holds {len(files)} ONNX files; a voice needs a folder of its own", field="model.path"
        )
    return _read_piper(folder, files[0]) if files else _read_transformers(folder)


def open_reader(checkpoint: VoiceCheckpoint) -> VoiceReader:
    """Returns what turns text into the voice's ids. Raises ConfigurationError."""
    if checkpoint.onnx is not None:
        return _piper_reader(checkpoint)
    return _transformers_reader(checkpoint)


def _read_piper(folder: Path, onnx: Path) -> VoiceCheckpoint:
    file = onnx.with_name(f"{onnx.name}.json")
    settings = _read_json(file)
    inference = _mapping(settings, "inference", file)
    speakers = _number(settings, "num_speakers", file, default=1)
    names = settings.get("speaker_id_map") or {}
    return VoiceCheckpoint(
        path=folder,
        onnx=onnx,
        settings=settings,
        sample_rate_hz=_rate(_mapping(settings, "audio", file).get("sample_rate"), file),
        voices=_name_voices(int(speakers), names, _voice_name(onnx.stem), file),
        noise=_number(inference, "noise_scale", file, default=0.667),
        noise_of_durations=_number(inference, "noise_w", file, default=0.8),
        length=_speed(inference, "length_scale", file),
    )


def _read_transformers(folder: Path) -> VoiceCheckpoint:
    file = folder / "config.json"
    settings = read_config(folder)
    if settings.get("model_type") != "vits":
        raise ConfigurationError(
            f"{folder} holds no voice: neither a Piper voice (NAME.onnx and NAME.onnx.json) nor transformers' VITS "
            "(config.json with the model_type vits)",
            field="model.path",
        )
    names = settings.get("speaker_id_map") or {}
    return VoiceCheckpoint(
        path=folder,
        onnx=None,
        settings=settings,
        sample_rate_hz=_rate(settings.get("sampling_rate", 16_000), file),
        voices=_name_voices(int(_number(settings, "num_speakers", file, default=1)), names, DEFAULT_VOICE, file),
        noise=_number(settings, "noise_scale", file, default=0.667),
        noise_of_durations=_number(settings, "noise_scale_duration", file, default=0.8),
        length=1.0 / _speed(settings, "speaking_rate", file),
    )


def _piper_reader(checkpoint: VoiceCheckpoint) -> VoiceReader:
    settings = checkpoint.settings
    file = checkpoint.path / "the voice's .onnx.json"
    symbols = _mapping(settings, "phoneme_id_map", file)
    try:
        ids = {str(name): [int(value) for value in values] for name, values in symbols.items()}
        table = SymbolTable(ids, blank=ids["_"], begin=ids["^"], end=ids["$"], decomposed=True)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{file}: phoneme_id_map is malformed", field="model.path") from error
    kind = settings.get("phoneme_type", "espeak")
    if kind == "text":
        return VoiceReader(str.lower, table)
    if kind not in ("espeak", "phoneme_type.espeak", "PhonemeType.ESPEAK"):
        raise ConfigurationError(
            f"{file}: phoneme_type {str(kind)[:40]!r} is not supported; espeak and text are", field="model.path"
        )
    language = str(_mapping(settings, "espeak", file).get("voice") or "")
    return VoiceReader(find_phonemizer(language, checkpoint.path), table)


def _transformers_reader(checkpoint: VoiceCheckpoint) -> VoiceReader:
    folder = checkpoint.path
    file = folder / "vocab.json"
    vocabulary = _read_json(file)
    settings = read_if_there(folder / "tokenizer_config.json")
    size = int(_number(checkpoint.settings, "vocab_size", folder / "config.json", default=VitsConfig.vocab_size))
    read = {name: value for name, value in vocabulary.items() if name not in ("<pad>", "<unk>")}
    if not read or not all(type(value) is int and 0 <= value < size for value in read.values()):
        raise ConfigurationError(
            f"{file} must map symbols to numbers from 0 to {size - 1}: vocab_size of config.json is {size}",
            field="model.path",
        )
    if settings.get("is_uroman"):
        raise ConfigurationError(
            f"{folder}: this voice reads text in Latin letters (is_uroman), which this stage does not convert to",
            field="model.path",
        )
    ids = {name: [value] for name, value in read.items()}
    add_blank = bool(settings.get("add_blank", True))
    table = SymbolTable(ids, blank=[0] if add_blank else (), blank_first=add_blank)
    language = str(settings.get("language") or "")
    if settings.get("phonemize", True):
        return VoiceReader(find_phonemizer(language, folder), table)
    lowers = bool(settings.get("normalize", True))
    return VoiceReader(partial(_write_letters, language=language, known=frozenset(ids) if lowers else None), table)


def _write_letters(text: str, *, language: str, known: frozenset[str] | None) -> str:
    """Returns a text as VitsTokenizer's `prepare_for_tokenization` does, with English numbers as words.

    known: the voice's symbols, if others become lower case, or are left out.
    """
    text = unicodedata.normalize("NFC", normalize(text) if language in _ENGLISH else text)
    if known is not None:
        text = "".join(letter if letter in known else letter.lower() for letter in text)
    if language == "ron":
        # Romanian is written with a comma below, and the voice was trained on a cedilla.
        text = text.replace("\u021b", "\u0163")
    return text if known is None else "".join(letter for letter in text if letter in known)


def _name_voices(count: int, names: Any, only: str, file: Path) -> tuple[str, ...]:
    """Returns a name for each speaker: the checkpoint's, else its number; `only` if there is one speaker."""
    if not 1 <= count <= _MAX_SPEAKERS or not isinstance(names, dict):
        raise ConfigurationError(
            f"{file}: num_speakers must be from 1 to {_MAX_SPEAKERS}, and speaker_id_map a mapping", field="model.path"
        )
    if count == 1:
        return (only,)
    by_id: dict[int, str] = {}
    for name, number in names.items():
        if not isinstance(number, int) or number not in range(count) or number in by_id:
            raise ConfigurationError(
                f"{file}: speaker_id_map gives {str(name)[:40]!r} the id {str(number)[:20]}, which another speaker "
                f"has, or which is not from 0 to {count - 1}",
                field="model.path",
            )
        by_id[number] = str(name)
    voices = tuple(by_id.get(number, str(number)) for number in range(count))
    if len(set(voices)) < count:
        raise ConfigurationError(
            f"{file}: in speaker_id_map, a speaker has the number of another one as its name", field="model.path"
        )
    return voices


def _voice_name(stem: str) -> str:
    """Returns joe for en_US-joe-medium."""
    parts = stem.split("-")
    return parts[1] if len(parts) == 3 and parts[1] else DEFAULT_VOICE


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror}", field="model.path") from error
    except ValueError as error:
        raise ConfigurationError(f"{file} is not JSON", field="model.path") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"{file} must hold a mapping", field="model.path")
    return content


def _mapping(settings: Mapping[str, Any], name: str, file: Path) -> Mapping[str, Any]:
    value = settings.get(name)
    if not isinstance(value, dict):
        raise ConfigurationError(f"{file}: {name} is missing", field="model.path")
    return value


def _number(settings: Mapping[str, Any], name: str, file: Path, *, default: float) -> float:
    value = settings.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MAX_SPEAKERS:
        raise ConfigurationError(f"{file}: {name} must be a number of at least 0", field="model.path")
    return float(value)


def _speed(settings: Mapping[str, Any], name: str, file: Path) -> float:
    value = _number(settings, name, file, default=1.0)
    if not _SPEEDS[0] <= value <= _SPEEDS[1]:
        raise ConfigurationError(
            f"{file}: {name} is {value:g}, but must be from {_SPEEDS[0]} to {_SPEEDS[1]:g}", field="model.path"
        )
    return value


def _rate(value: Any, file: Path) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value not in _RATES:
        raise ConfigurationError(f"{file}: the sample rate must be from 4000 to 96000 Hz", field="model.path")
    return value

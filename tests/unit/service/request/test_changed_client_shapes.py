"""Every value of what clients send, replaced by a value of another kind: an answer or an error that names the place."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.stages.served_gateway import Served, with_media

SHAPES = yaml.safe_load(Path("tests/data/clients/shapes.yaml").read_text(encoding="utf-8"))
OTHERS: tuple[Any, ...] = (None, "x", [{}], {"type": "x"}, 10**30)
ROUTES = {"chat": ("/v1/chat/completions", "messages"), "speech": ("/v1/audio/speech", "input")}
OWN = re.compile(r"start\.|parts\[|prompt_token_ids|template_arguments|structured_output\b|<(text|list|object)>")


def places(value: Any, keys: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the keys of each value inside a body."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        yield (*keys, key)
        yield from places(one, (*keys, key))


def changed(body: Any, keys: tuple[Any, ...], other: Any) -> Any:
    """Returns the body with another value at that place."""
    body = copy.deepcopy(body)
    here = body
    for key in keys[:-1]:
        here = here[key]
    here[keys[-1]] = other
    return body


def leads_into(param: str, body: Any) -> bool:
    """Returns whether a path leads to a value of the body, or to a field that is missing there."""
    here = body
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", param):
        if index:
            if not isinstance(here, list) or int(index) >= len(here):
                return False
            here = here[int(index)]
        elif not isinstance(here, dict):
            return False
        else:
            here = here.get(name)
    return True


@pytest.mark.parametrize("each", [2, pytest.param(len(OTHERS), marks=pytest.mark.full)])
async def test_each_change_is_answered_or_named(each: int) -> None:
    """Every value becomes `each` of the others, in turn."""
    served, wrong, seen, asked = Served(), [], set[str](), 0
    async with AsyncExitStack() as stack:
        await served.start(stack)
        for row in SHAPES:
            path, prompt = ROUTES[row.get("route", "chat")]
            base = {prompt: [{"role": "user", "content": "Hi"}] if prompt == "messages" else "Hi", **row["body"]}
            base = {"model": "m", **with_media(base)}
            for keys in places(base):
                kind = f"{path}{keys[-1]}{len(keys)}{row.get('lenient')}"
                if kind in seen or "data:" in str(keys):
                    continue
                seen.add(kind)
                for turn in range(each):
                    other = OTHERS[(len(seen) + 2 * turn) % len(OTHERS)]
                    asked += 1
                    body = changed(base, keys, other)
                    answer = await served.clients[row.get("lenient", False)].post(path, json=body)
                    if answer.status_code == 200:
                        continue
                    error = answer.json()["error"]
                    named = error["param"] is None or leads_into(error["param"], body)
                    if answer.status_code >= 500 or OWN.search(str(error)) or not named or error["param"] is None:
                        wrong.append((keys, other, answer.status_code, error))
    assert asked > 100 * each
    assert wrong == []

"""Fixtures for stage servers with scripted engines; see tests/support/stages/scripted_stages.py."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from support.stages.scripted_stages import Kit


@pytest_asyncio.fixture
async def kit() -> AsyncIterator[Kit]:
    async with AsyncExitStack() as stack:
        yield Kit(stack)


@pytest.fixture(autouse=True)
def _keep_logging() -> Iterator[None]:
    """Restores the root logger after each test, because some tests point it at captured streams."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)

"""Which of several pipelines a gateway serves under a name that more than one of them claims."""

from __future__ import annotations

from dataclasses import replace

import pytest

from omni_proto.model_names import NameClaims, grant_names, is_qualified, read_claims, resolve_names

OLD, NEW = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"
OWNER = NameClaims("owner", "chat", OLD, ("tts-1",))
RECORDED = replace(OWNER, granted={"chat": OLD, "tts-1": OLD})
NAMED_ALIKE = NameClaims("other", "chat", NEW)
NAMED_LIKE_THE_ALIAS = NameClaims("other", "tts-1", NEW)
SAME_ALIAS = NameClaims("other", "voice", NEW, ("tts-1",))
NEWER_OWNER = NameClaims("owner", "chat", NEW, granted={"chat": NEW})
OLD_WITH_A_NEW_ALIAS = NameClaims("other", "mine", OLD, ("chat",), edited=True, granted={"mine": OLD})


@pytest.mark.parametrize(
    ("owner", "other", "name"),
    [
        (RECORDED, NAMED_ALIKE, "chat"),
        (RECORDED, replace(NAMED_ALIKE, created="2025-01-01T00:00:00Z"), "chat"),
        (RECORDED, NAMED_LIKE_THE_ALIAS, "tts-1"),
        (RECORDED, SAME_ALIAS, "tts-1"),
        (NEWER_OWNER, OLD_WITH_A_NEW_ALIAS, "chat"),
        (NEWER_OWNER, replace(OLD_WITH_A_NEW_ALIAS, granted={"mine": OLD, "chat": "2026-03-01T00:00:00Z"}), "chat"),
        (OWNER, NAMED_ALIKE, "chat"),
        (OWNER, NAMED_LIKE_THE_ALIAS, "tts-1"),
        (OWNER, SAME_ALIAS, "tts-1"),
    ],
)
def test_the_owner_keeps_the_name(owner: NameClaims, other: NameClaims, name: str) -> None:
    """The last three are pipelines of an operator that records no names."""
    for pipelines in ((owner, other), (other, owner)):
        assert resolve_names(pipelines)[name] is owner


@pytest.mark.parametrize(
    ("pipelines", "name"),
    [
        ((replace(NEWER_OWNER, granted=None), replace(OLD_WITH_A_NEW_ALIAS, granted=None)), "chat"),
        ((replace(OWNER, granted={"chat": OLD}),), "tts-1"),
        ((replace(OWNER, aliases=("other/chat",)),), "other/chat"),
        ((replace(RECORDED, aliases=()),), "tts-1"),
    ],
    ids=["an alias of unknown age", "not granted yet", "names a namespace", "given up"],
)
def test_a_name_that_nobody_has(pipelines: tuple[NameClaims, ...], name: str) -> None:
    assert name not in resolve_names(pipelines)


@pytest.mark.parametrize(
    ("name", "qualified"),
    [
        ("team-a/chat", True),
        ("openai/gpt-4o", True),
        ("1/a", True),
        (f"{'a' * 63}/{'b' * 63}", True),
        ("Qwen/Qwen2.5-Omni-7B", False),
        ("qwen/qwen2.5", False),
        ("a/b/c", False),
        ("a/1b", False),
        ("chat", False),
        (f"{'a' * 64}/b", False),
    ],
)
def test_names_that_read_as_a_pipeline_of_a_namespace(name: str, qualified: bool) -> None:
    assert is_qualified(name) is qualified


def test_what_the_status_says() -> None:
    """A granted name has a time. Another one has a message that names the owner and how to reach this pipeline."""
    claims = NameClaims("other", "chat", NEW, ("tts-1", "free", "owner/chat", "other/chat"))
    holders = {"chat": (RECORDED, claims), "tts-1": (RECORDED, claims), "free": (claims,), "owner/chat": (claims,)}
    record = {one["name"]: one for one in grant_names(claims, holders, "2026-03-01T00:00:00Z")}
    assert record["free"] == {"name": "free", "since": "2026-03-01T00:00:00Z"}
    for name in ("chat", "tts-1"):
        assert "since" not in record[name]
        assert "owner/chat" in record[name]["message"]
        assert "other/chat" in record[name]["message"]
    assert "namespace owner" in record["owner/chat"]["message"]
    assert set(record) == {"chat", "tts-1", "free", "owner/chat"}
    assert grant_names(RECORDED, {"chat": (RECORDED,), "tts-1": (RECORDED,)}, NEW) == [
        {"name": "chat", "since": OLD},
        {"name": "tts-1", "since": OLD},
    ]


def test_claims_are_read_from_an_object() -> None:
    metadata = {"name": "chat", "namespace": "owner", "creationTimestamp": OLD, "generation": 2}
    names = [{"name": "chat", "since": OLD}, {"name": "tts-1", "message": "taken"}]
    manifest = {"metadata": metadata, "spec": {"aliases": {"models": ["tts-1"]}}, "status": {"names": names}}
    assert read_claims(manifest) == replace(OWNER, edited=True, granted={"chat": OLD})
    assert read_claims({"metadata": metadata | {"generation": 1}}) == replace(OWNER, aliases=())
    assert read_claims({"metadata": metadata | {"deletionTimestamp": NEW}}) is None

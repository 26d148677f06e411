"""API keys: hashing, lookup, and reloading when their file changes. No key appears in an error or in the log."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from omni_cli.main import app
from omni_gateway.errors import AuthenticationError
from omni_gateway.guard.keys import KeyFileError, KeyRing, find_key, hash_key, make_key, parse_keys


def entry(name: str, key: str) -> str:
    return f"- {{name: {name}, sha256: {hash_key(key)}}}\n"


def test_the_hash_is_sha256_as_sha256sum_prints_it() -> None:
    # printf foo | sha256sum
    assert hash_key("foo") == "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"


def test_a_new_key_is_found_by_its_hash_alone() -> None:
    key, digest = make_key()
    keys = parse_keys(f"keys:\n{entry('bob', 'other')}- {{name: alice, sha256: {digest}}}\n").keys
    assert find_key(keys, key) is keys[1]
    assert find_key(keys, digest) is None
    assert len(key) > 40
    assert make_key()[0] != key


@pytest.mark.parametrize("name", ["alice", "123", "null", "1.5", "2026-11-23", "yes"])
def test_the_command_prints_an_entry_that_the_gateway_reads(name: str) -> None:
    made = CliRunner().invoke(app, ["gateway-key", name])
    (key,) = parse_keys(f"keys:\n{made.stdout}").keys
    assert key.name == name
    assert key.sha256 == hash_key(made.stderr.removeprefix("key: ").strip())


@pytest.mark.parametrize("name", ["a: b", "bob@example.com", "x" * 64, "", "a\nb"])
def test_the_command_refuses_names_that_the_gateway_refuses(name: str) -> None:
    made = CliRunner().invoke(app, ["gateway-key", name])
    assert (made.exit_code, made.stdout) == (2, "")
    assert "1 to 63 letters, digits, dots, underscores and hyphens" in " ".join(made.stderr.replace("│", "").split())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("keys: [", "not YAML"),
        (b"keys: \xff", "not YAML"),
        ("keys: 2024-99-99", "not YAML"),
        ("[" * 5000, "not YAML"),
        ("keys:\n- {name: a}", "sha256"),
        ("keys:\n- {name: a, sha256: secret-in-plain}", "sha256"),
        ("keys:\n- {name: a b, sha256: " + "0" * 64 + "}", "name"),
        (f"keys:\n{entry('a', 'x')}{entry('a', 'y')}", "same name"),
        ("keys:\n- {name: a, sha256: " + "0" * 64 + ", limits: {requests: 1}}", "requests"),
    ],
)
def test_a_wrong_file_names_the_field_and_no_value(text: str | bytes, says: str) -> None:
    with pytest.raises(KeyFileError, match=says) as caught:
        parse_keys(text)
    assert "secret-in-plain" not in str(caught.value)


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic right", "Bearer wrong", "right", "Bearer é"])
def test_requests_without_a_valid_key_are_refused(tmp_path: Path, header: str | None) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(f"keys:\n{entry('alice', 'right')}")
    ring = KeyRing(file)
    with pytest.raises(AuthenticationError):
        ring.authenticate(header)
    assert ring.authenticate("bearer right").name == "alice"


def test_a_changed_key_file_is_reloaded_and_a_damaged_one_is_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A changed file takes effect. If the new file is invalid, the earlier keys stay in use."""
    now = 0.0
    # Kubelet updates a mounted Secret by replacing a symlink to its directory. Here the file itself is the symlink.
    link = tmp_path / "keys.yaml"
    for name, text in (
        ("v1", f"keys:\n{entry('alice', 'old')}"),
        ("v2", f"keys:\n{entry('alice', 'new')}"),
        ("v3", "x"),
    ):
        (tmp_path / name).write_text(text)
    link.symlink_to(tmp_path / "v1")
    ring = KeyRing(link, clock=lambda: now)
    assert ring.authenticate("Bearer old").name == "alice"
    for version in ("v2", "v3"):
        (tmp_path / "next").symlink_to(tmp_path / version)
        os.replace(tmp_path / "next", link)
        now += 10
        with caplog.at_level(logging.ERROR):
            assert ring.authenticate("Bearer new").name == "alice"
        with pytest.raises(AuthenticationError):
            ring.authenticate("Bearer old")
    assert "earlier keys stay" in caplog.text
    assert "new" not in caplog.text.replace("renew", "")


def test_the_key_file_in_the_docs_is_valid() -> None:
    page = (Path(__file__).parents[4] / "docs/gateway-operations.md").read_text()
    (key,) = parse_keys("keys:" + page.partition("```yaml\nkeys:")[2].partition("```")[0]).keys
    assert (key.name, key.sha256, key.limits.requests_per_minute) == ("alice", hash_key("foo"), 60)

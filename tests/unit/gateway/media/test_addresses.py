"""Which addresses the gateway may fetch media from."""

from __future__ import annotations

import ipaddress
import random

import pytest

from omni_gateway.errors import InvalidMediaError
from omni_gateway.media.fetch import is_public, resolve
from support.tables import each_row

PUBLIC = ("1.1.1.1", "8.8.8.8", "93.184.215.14", "126.255.255.255", "192.0.1.0", "198.20.0.0", "223.255.255.255")
NOT_PUBLIC = (
    *("0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.9.9.9"),
    *("169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.0.9", "192.0.2.1", "192.168.1.1"),
    *("192.31.196.1", "192.52.193.1", "192.88.99.1", "192.175.48.1", "198.18.0.1", "198.19.255.255", "198.51.100.7"),
    *("203.0.113.9", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),
)
EMBEDDINGS = ("::ffff:{}", "64:ff9b::{}", "2606:2800:220:1:0:5efe:{}", "2606:2800:220:1:200:5efe:{}")
"""IPv6 addresses with an IPv4 address: mapped, NAT64, and ISATAP. The IPv4 address decides."""
ISATAP_OF_GROUPS = ("2606:2800:220:1:100:5efe:{}", "2606:2800:220:1:300:5efe:{}")
REFUSED_EMBEDDINGS = (
    *("::{}", "::ffff:0:{}", "64:ff9b:1::{}", "64:ff9b:1:ffff:ffff:ffff:{}", "fe80::5efe:{}", "fe80::200:5efe:{}"),
    *("fd00::200:5efe:{}", "fec0::{}", "2001:0:808:808::{}", "2002:808:808::{}", "2001:db8::{}"),
)
"""Refused whatever IPv4 address they hold: compatible, translated, local NAT64, ISATAP on a link, Teredo, 6to4."""


def in_hex(template: str, address: str) -> str:
    """Returns an IPv6 address that ends with this IPv4 address."""
    return str(ipaddress.IPv6Address(template.format(address)))


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses(address: str) -> None:
    assert is_public(address)
    assert all(is_public(in_hex(template, address)) for template in EMBEDDINGS)
    assert not any(is_public(in_hex(template, address)) for template in REFUSED_EMBEDDINGS)


@each_row("address", NOT_PUBLIC)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)
    for template in (*EMBEDDINGS, *ISATAP_OF_GROUPS, *REFUSED_EMBEDDINGS):
        assert not is_public(in_hex(template, address)), template


@pytest.mark.parametrize("private", ["10.0.0.1", "127.0.0.1", "169.254.169.254"])
def test_tunnels_to_private_addresses(private: str) -> None:
    """6to4 and Teredo hold IPv4 addresses elsewhere: 6to4 behind 2002, Teredo its server, and its client inverted."""
    number = int(ipaddress.IPv4Address(private))
    assert not is_public(str(ipaddress.IPv6Address(0x2002 << 112 | number << 80 | 1)))
    assert not is_public(str(ipaddress.IPv6Address(0x20010000 << 96 | number << 64 | 0xFFFFFFFF ^ 0x08080808)))
    assert not is_public(str(ipaddress.IPv6Address(0x20010000 << 96 | 0x08080808 << 64 | 0xFFFFFFFF ^ number)))


@each_row(
    "address, public",
    [
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", True),
        ("2a00:1450:4001:80b::200e", True),
        ("2001:4860:4860::8888", True),
        ("2620:4f:8001::1", True),
        ("::", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("2606:2800::1%eth0", True),
        ("fd00::1", False),
        ("fc00::1", False),
        ("fec0::1", False),
        ("feff::1", False),
        ("ff02::1", False),
        ("ff0e::1", False),
        ("100::1", False),
        ("100:0:0:1::1", False),
        ("2001::1", False),
        ("2001:2::1", False),
        ("2001:10::1", False),
        ("2001:20::1", False),
        ("2001:1ff::1", False),
        ("2001:200::1", True),
        ("2001:db8::1", False),
        ("2002::1", False),
        ("2620:4f:8000::1", False),
        ("3fff::1", False),
        ("3fff:1000::1", True),
        ("4000::1", False),
        ("5f00::1", False),
        ("64:ff9b:1::1", False),
        ("64:ff9a::1", False),
        ("not an address", False),
        ("", False),
        ("127.1", False),
        ("2130706433", False),
        ("0177.0.0.1", False),
    ],
)
def test_which_addresses_are_public(address: str, public: bool) -> None:
    assert is_public(address) is public


def test_all_addresses_that_python_calls_private_are_refused() -> None:
    """Python's tables, which come from the same registries, allow nothing less in 40,000 addresses near all borders."""
    draw = random.Random(7)
    for size in (32, 128):
        make = ipaddress.IPv4Address if size == 32 else ipaddress.IPv6Address
        edges = [0, 1, (1 << size) - 1]
        edges += [1 << size - bits for bits in range(1, size + 1)]
        edges += [int(make(one)) for one in (*PUBLIC, *NOT_PUBLIC)] if size == 32 else [0x2001 << 112, 0x64FF9B << 88]
        for _ in range(20_000):
            number = draw.choice(edges) ^ draw.getrandbits(draw.choice([1, 8, size]))
            address = make(number & (1 << size) - 1)
            if is_public(str(address)):
                assert address.is_global or str(address).startswith(("::ffff:", "64:ff9b::")), address
                assert not address.is_multicast


@pytest.mark.parametrize("host", ["a..b", ".a", "a" * 64, "\u00e4" * 3000, "a" * 70_000])
async def test_a_host_that_is_no_name_is_refused(host: str) -> None:
    """Python's codec for such names raises UnicodeError, which is no OSError."""
    with pytest.raises(InvalidMediaError, match="names no valid host"):
        await resolve(host, param="p")

"""`omnipipe status`: reads one OmniPipeline from a cluster and draws it, once or whenever it changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.live import Live

from omni_cli.views.status import draw_status
from omni_proto.pipeline import API_VERSION

Document = dict[str, Any]
POLL_S = 1.0
_GROUP, _, _VERSION = API_VERSION.partition("/")
_PLURAL = "omnipipelines"
_TIMEOUT_S = 10.0
_REMEDY = "give a file by --kubeconfig or KUBECONFIG"


class StatusError(Exception):
    """The pipeline cannot be read; the message says why."""


def connect(kubeconfig: Path | None, namespace: str | None) -> tuple[Callable[[str], Document], str]:
    """Returns a function that reads the pipeline with a given name, and the namespace from which it reads.

    If kubeconfig is None, the default kubeconfig is used or, where there is none, a pod's own credentials. If namespace
    is None, the namespace of the kubeconfig's context is used, else `default`. Raises StatusError.
    """
    from kubernetes import client, config
    from kubernetes.config.config_exception import ConfigException

    file = str(kubeconfig) if kubeconfig else None
    try:
        config.load_config(config_file=file)  # type: ignore[no-untyped-call]
        context = _context_namespace(config, file)
    except (ConfigException, OSError) as error:
        raise StatusError(f"cannot find a cluster: {error}; {_REMEDY}") from error
    except (AttributeError, TypeError, ValueError, yaml.YAMLError) as error:
        # The client reads the fields of the file without checking their types.
        words = " ".join(str(error).split())
        raise StatusError(f"cannot find a cluster: the kubeconfig is damaged: {words}; {_REMEDY}") from error
    api = client.CustomObjectsApi()
    where = namespace or context

    def read(name: str) -> Document:
        return _read(api, where, name)

    return read, where


def _context_namespace(config: Any, file: str | None) -> str:
    try:
        _, active = config.list_kube_config_contexts(config_file=file)
    except config.ConfigException:
        return "default"  # in a pod there is no kubeconfig
    return str(active["context"].get("namespace") or "default")


def _read(api: Any, namespace: str, name: str) -> Document:
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    try:
        found: Document = api.get_namespaced_custom_object(
            _GROUP, _VERSION, namespace, _PLURAL, name, _request_timeout=_TIMEOUT_S
        )
    except ApiException as error:
        if error.status == 404:
            raise StatusError(
                f"no pipeline {name!r} in namespace {namespace!r}; kubectl get omni -A lists all of them"
            ) from error
        raise StatusError(f"the API server answers {error.status} ({error.reason})") from error
    except HTTPError as error:
        raise StatusError(f"the API server does not answer: {type(error).__name__}") from error
    return found


def show_status(name: str, kubeconfig: Path | None, namespace: str | None, watch: bool, console: Console) -> None:
    """Draw the pipeline. With watch, draw it again after each change, until it is deleted or the user interrupts.

    Raises StatusError.
    """
    read, _ = connect(kubeconfig, namespace)
    if not watch:
        console.print(draw_status(read(name)))
        return
    follow(changes(lambda: read(name), lambda: time.sleep(POLL_S)), console)


def changes(read: Callable[[], Document], pause: Callable[[], None]) -> Iterator[Document]:
    """Yields the document first as it is, then whenever it has changed.

    Raises StatusError if the first read fails, or once the pipeline no longer exists.
    """
    version = None
    for number in count():
        if number:
            pause()
        try:
            document = read()
        except StatusError as error:
            # A restart of the API server does not end a watch; the deletion of the pipeline does.
            if number == 0 or str(error).startswith("no pipeline"):
                raise
            continue
        if document["metadata"].get("resourceVersion") != version:
            version = document["metadata"].get("resourceVersion")
            yield document


def follow(documents: Iterator[Document], console: Console) -> None:
    """Draw each document: in place on a terminal, one below the other elsewhere."""
    if not console.is_terminal:
        for document in documents:
            console.print(draw_status(document))
        return
    with Live(console=console, auto_refresh=False) as live:
        for document in documents:
            live.update(draw_status(document), refresh=True)

"""`python -m tools.release`: cut a version, build its files, push its chart (docs/releases.md)."""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import time
from pathlib import Path

from tools.release.build import build_release, push_chart, run, sign
from tools.release.version import ROOT, ReleaseError, cut, read_version

GENERATED = (
    ("-m", "tools.export_schemas"),
    ("-m", "tools.chart_docs"),
    ("tools/render_goldens.py",),
)


def main() -> int:
    """Run the subcommand. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    cutting = commands.add_parser("cut", help="set the version everywhere, and cut the changelog")
    cutting.add_argument("version")
    building = commands.add_parser("build", help="build the release's files")
    pushing = commands.add_parser("push-chart", help="push the chart to REGISTRY/charts")
    for each in (cutting, building, pushing):
        each.add_argument("--helm", type=Path, required=True, help="the helm program")
    for each in (building, pushing):
        each.add_argument("--out", type=Path, help="folder of the release; default: dist/VERSION")
    building.add_argument("--registry", default="", help="where the chart's images come from by default")
    building.add_argument("--no-bills", action="store_true", help="leave out the bills of materials")
    signing = commands.add_parser("sign", help="sign the chart and the images in REGISTRY")
    signing.add_argument("--cosign", type=Path, default=Path("cosign"), help="the cosign program")
    signing.add_argument("--key", type=Path, help="a private key of cosign; default: keyless, by Sigstore")
    for each in (pushing, signing):
        each.add_argument("--registry", required=True)
        each.add_argument("--plain-http", action="store_true", help="the registry has no TLS")
    options = parser.parse_args()
    try:
        if options.command == "cut":
            # SOURCE_DATE_EPOCH makes the day of the changelog reproducible.
            seconds = float(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
            cut(options.version, datetime.datetime.fromtimestamp(seconds, datetime.UTC).date())
            for command in GENERATED:
                run(sys.executable, *command)
            run(sys.executable, "tools/render_manifests.py", "--helm", options.helm)
            sys.stdout.write(f"this tree is {read_version()}; commit it and tag it v{read_version()}\n")
            return 0
        if options.command == "sign":
            signed = sign(options.registry, options.cosign, key=options.key, plain_http=options.plain_http)
            sys.stdout.writelines(f"{reference}\n" for reference in signed)
            return 0
        out = options.out or ROOT / "dist" / read_version()
        if options.command == "build":
            files = build_release(out, options.helm, options.registry, bills=not options.no_bills)
            sys.stdout.writelines(f"{file}\n" for file in files)
        else:
            sys.stdout.write(push_chart(out, options.helm, options.registry, plain_http=options.plain_http) + "\n")
    except (ReleaseError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

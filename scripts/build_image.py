"""Build the image of deploy/Dockerfile with buildah, which needs no daemon. `make image` runs it.

    python scripts/build_image.py [--tag NAME] [--debian] [OPTION …]

--debian makes the base image from Debian's packages with debootstrap, for machines that reach no registry. It needs
root. Every OPTION goes to `buildah build`, such as --build-arg=SEMANTIC=1. The image has Docker's format, because the
OCI format has no health check. BUILDAH_ISOLATION=chroot builds where containers cannot be started.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
BASE = "localhost/knapcache-base"
"""The base image that --debian makes."""
DEBIAN = ["debootstrap", "--variant=minbase", "--include=ca-certificates,python3,python3-venv", "bookworm"]


def run(*command: str | Path) -> str:
    """Run a command, print it, and return what it prints. Raises CalledProcessError."""
    print("$", *command, flush=True)
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def debian_base() -> None:
    """Make the base image: a minimal Debian with the Python of that release, named `python` as in the usual image."""
    with tempfile.TemporaryDirectory(prefix="knapcache-image-") as folder:
        run(*DEBIAN, folder)
        Path(folder, "usr/bin/python").symlink_to("python3")
        container = run("buildah", "from", "scratch")
        run("buildah", "copy", "--quiet", container, folder, "/")
        run("buildah", "commit", "--quiet", "--rm", container, BASE)


def main() -> None:
    """Build the image. Exit code 1 if a command fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tag", metavar="NAME", default=f"knapcache:{VERSION}", help="name of the image")
    parser.add_argument("--debian", action="store_true", help="make the base image with debootstrap")
    args, options = parser.parse_known_args()
    build = ["buildah", "build", "--format", "docker", "--file", ROOT / "deploy" / "Dockerfile", "--tag", args.tag]
    try:
        if args.debian:
            debian_base()
            build += ["--pull-never", "--build-arg", f"BASE={BASE}"]
        subprocess.run([*build, *options, ROOT], check=True)
    except FileNotFoundError as error:
        raise SystemExit(f"{error.filename} is missing: install the package {error.filename}") from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"failed: {error}") from None


if __name__ == "__main__":
    main()

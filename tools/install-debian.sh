#!/usr/bin/env bash
# Installs Debian or Ubuntu packages that pip cannot: by default those of the browser check.
# Usage: tools/install-debian.sh [PACKAGE ...]      (needs root, or sudo)
set -euo pipefail
packages=("${@:-chromium}")

as_root() { if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi; }

export DEBIAN_FRONTEND=noninteractive
as_root apt-get update -q
as_root apt-get install -q -y --no-install-recommends "${packages[@]}"

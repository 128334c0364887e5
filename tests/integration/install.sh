#!/usr/bin/env bash
# Debian packages the integration tests use; tests whose parts are missing say so and are skipped.
set -euo pipefail
missing=()
need() { command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ] || missing+=("$2"); }
need chromium chromium
need dockerd docker.io
need docker docker.io
need sshd openssh-server
need ssh openssh-client
need slurmctld slurm-wlm
need munged munge
need modulecmd environment-modules
need slurmdbd slurmdbd
need mariadbd mariadb-server-core
need ffprobe ffmpeg
need npm npm
need kubectl kubernetes-client
[ ${#missing[@]} -eq 0 ] && exit 0
if [ "$(id -u)" -ne 0 ]; then
  echo "not root, so not installed: ${missing[*]}" >&2
  exit 0
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null

#!/bin/sh
# Installs and starts the agent of this machine: URL and SHA-256 of the program.
set -eu
new=/usr/local/bin/selvage.new
curl --fail --silent --show-error --location --retry 10 --retry-connrefused --output "$new" "$1"
if ! echo "$2  $new" | sha256sum --check --status; then
  rm -f "$new"
  echo "selvage: the program at $1 does not have the SHA-256 that kaas.maas.binary_sha256 names" >&2
  exit 1
fi
chmod 0755 "$new"
mv "$new" /usr/local/bin/selvage
systemctl daemon-reload
systemctl enable --now selvage-node.service

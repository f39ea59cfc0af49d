#!/bin/sh
# Writes the image of `make image` as an OCI image layout: packaging/image.sh [DIR], by default bin/image. It needs no
# container engine. The same commit makes the same bytes.
set -eu
umask 022
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-bin/image}")
[ ! -e "$out" ] || [ -e "$out/oci-layout" ] || { echo "image.sh: $out exists and is no image layout" >&2; exit 1; }
rm -rf "$out"
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
. packaging/version.sh
. packaging/build.sh

build_programs amd64 arm64
mkdir -p "$(dirname "$out")"
go run ./packaging/image -out "$out" -version "$VERSION" -created "$SOURCE_DATE_EPOCH" "amd64=$programs/amd64" "arm64=$programs/arm64"

#!/bin/sh
# Writes a release: packaging/release.sh [DIR], by default bin/release. It has repositories of the packages (apt, rpm), the
# image, the section of the changelog (CHANGES.md), the modules in each program (SBOM in CycloneDX), the version, and the
# checksums of all of them. ARCHS is as in package.sh. The same commit makes the same bytes. With SIGN_KEY, a key of gpg,
# the repositories and the checksums are signed.
set -eu
umask 022
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-bin/release}")
[ ! -e "$out" ] || [ -e "$out/SHA256SUMS" ] || { echo "release.sh: $out exists and is no release" >&2; exit 1; }
rm -rf "$out" # files of another version
archs=${ARCHS:-amd64 arm64}
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
. packaging/version.sh
. packaging/build.sh
[ -z "${SIGN_KEY-}" ] || gpg --batch --list-secret-keys "$SIGN_KEY" >/dev/null

mkdir -p "$out"
packaging/changes.sh "$VERSION" >"$out/CHANGES.md"
echo "$VERSION" >"$out/VERSION"

build_programs $archs
ARCHS=$archs PROGRAMS=$programs packaging/package.sh "$out"
tool cyclonedx-gomod github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod
time=$(date -u -d "@$SOURCE_DATE_EPOCH" +%FT%TZ)
for arch in $archs; do
	for program in $names; do
		.cache/tools/cyclonedx-gomod bin -json -noserial -std -version "$VERSION" "$programs/$arch/$program" |
			sed -E "s/(\"timestamp\": )\"[^\"]*\"/\1\"$time\"/" >"$out/$program-$arch.cdx.json"
	done
done
ARCHS=$archs PROGRAMS=$programs packaging/image.sh "$out/image"
packages createrepo-c
packaging/repository.sh "$out"
cd "$out"
find . -type f -printf '%P\0' | sort -z | xargs -0 sha256sum >"$stage/SHA256SUMS"
mv "$stage/SHA256SUMS" .
[ -z "${SIGN_KEY-}" ] || gpg --batch --local-user "$SIGN_KEY" --armor --detach-sign SHA256SUMS

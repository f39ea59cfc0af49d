#!/bin/sh
# Prints the section of CHANGELOG.md of a version: packaging/changes.sh v1.2.0. Pre-releases and the commits between
# releases are "Unreleased".
set -eu
cd "$(dirname "$0")/.."
case $1 in
v*-*) section=Unreleased ;;
v*) section=${1#v} ;;
*) section=Unreleased ;;
esac
awk -v section="$section" '
	/^## / { on = $2 == section || $2 == section ":" }
	on { print; found = 1 }
	END { exit !found }
' CHANGELOG.md || { echo "changes.sh: CHANGELOG.md has no section \"## $section\"" >&2; exit 1; }

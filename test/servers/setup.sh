#!/usr/bin/env bash
# Builds the real servers that tests run against, each from a module of its own next to this script, into
# .cache/servers/<name>-<version>; .cache/servers/<name> is a link to the newest binary. The first build takes minutes
# (Consul and kube-apiserver: ten each, on two cores), a second run nothing: what is built is keyed by go.mod, go.sum,
# ldflags and Go's version.
# It may be interrupted: Go keeps the packages that it has compiled, and a binary appears whole or not at all.
#   test/servers/setup.sh [NAME...]      all of them without a name
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
cache=$(cd "$here/../.." && pwd)/.cache/servers

say() { echo "servers: $*" >&2; }
die() { say "$*"; exit 1; }
. "$here/../fetch.sh"

# The folders name the servers to build: the folder's name is the server's, and the module has one `tool` line, its main
# package, or a main.go and a line `// version of MODULE`. A file ldflags beside it has what else the linker is told,
# with VERSION in place of the server's version.
names=("$@")
[ ${#names[@]} -gt 0 ] || for mod in "$here"/*/go.mod; do names+=("$(basename "$(dirname "$mod")")"); done
for name in "${names[@]}"; do
	[ -e "$here/$name/go.mod" ] || die "no server $name here: there is no $here/$name/go.mod"
done
command -v go >/dev/null || die "no go command. Remedy: install Go (see go.mod for the version) and put it on the PATH."

# progress counts what go build -v names, the packages that it compiles, and says something four times a minute.
progress() {
	local name=$1 started=$SECONDS last=$SECONDS n=0 line status
	while :; do
		line= status=0
		IFS= read -r -t 15 line || status=$?
		[ "$status" = 0 ] || [ "$status" -gt 128 ] || break # its end; above 128 is a time without a line
		case $line in
		"" | "go: downloading "*) ;;
		*[\ :]*) echo "$line" >&2 ;; # not a package: what is wrong
		*) n=$((n + 1)) ;;
		esac
		[ $((SECONDS - last)) -ge 15 ] || continue
		last=$SECONDS
		case $line in
		"go: downloading "*) say "$name: ${line#go: } ($((SECONDS - started)) s)" ;;
		*) say "$name: $n packages compiled of at most $total ($((SECONDS - started)) s)" ;;
		esac
	done
}

# required is the version, without its v, at which ./go.mod requires the module that a package is of.
required() {
	local module=$1 version=
	while :; do
		version=$(sed -n -E "s|^(require )?[[:space:]]*${module} v([^ ]*).*|\2|p" go.mod)
		[ -z "$version" ] && [ "$module" != "${module%/*}" ] || break
		module=${module%/*}
	done
	echo "$version"
}

build() {
	local name=$1 main of version key dest total ldflags='-s -w' inputs=(go.mod go.sum)
	cd "$here/$name"
	main=$(sed -n 's/^tool //p' go.mod)
	of=$main
	if [ -e main.go ]; then
		main=. of=$(sed -n 's|^// version of ||p' go.mod) inputs+=(main.go)
	fi
	version=$(required "$of")
	[ -n "$version" ] || die "$here/$name/go.mod: needs the lines 'tool PACKAGE' (or '// version of MODULE' beside a main.go) and 'require MODULE vVERSION'"
	if [ -e ldflags ]; then
		inputs+=(ldflags)
		ldflags+=" $(sed "s|VERSION|$version|g" ldflags)"
	fi
	dest=$cache/$name-$version
	key=$({ go env GOVERSION; cat "${inputs[@]}"; } | sha256sum | cut -c 1-64)
	if [ ! -x "$dest/$name" ] || [ "$(cat "$dest/key" 2>/dev/null)" != "$key" ]; then
		say "building $name $version; the first time that takes minutes"
		mkdir -p "$dest"
		again go list -deps "$main" >"$dest/packages" || die "$name: go list, see above. Remedy: run this again with the network there."
		total=$(wc -l <"$dest/packages")
		CGO_ENABLED=0 go build -v -trimpath -ldflags="$ldflags" -o "$dest/$name.new" "$main" 2>&1 | progress "$name" ||
			die "$name: go build, see above. Remedy: for a missing module, run this again with the network there."
		rm -f "$dest/key"
		mv "$dest/$name.new" "$dest/$name"
		echo "$key" >"$dest/key"
		say "built $dest/$name"
	fi
	ln -sfn "$name-$version/$name" "$cache/$name"
}

unset GOFLAGS
mkdir -p "$cache"
exec 9>"$cache/lock"
if ! flock -n 9; then
	say "waiting for another run of this script"
	renice -n 0 -g "$(cat "$cache/owner")" >/dev/null 2>&1 || true # it may have begun in the background, with a lower priority
	flock 9
fi
ps -o pgid= $$ | tr -d ' ' >"$cache/owner"
for name in "${names[@]}"; do build "$name"; done

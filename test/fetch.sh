# Functions for scripts that download. They retry, so that a short failure of a mirror or proxy fails no test.
# Plain sh. The caller defines "say" and "die".

# again COMMAND... runs COMMAND up to four times with growing pauses, until it succeeds. The last pause is long enough
# for what a new machine does at its start, such as an apt-get update that locks the package lists.
again() {
	for pause in 5 20 60; do
		"$@" && return 0
		say "failed; retrying in $pause s"
		sleep "$pause"
	done
	"$@"
}

# as_root COMMAND... runs it as root.
as_root() {
	if [ "$(id -u)" = 0 ]; then
		DEBIAN_FRONTEND=noninteractive "$@"
	elif command -v sudo >/dev/null; then
		sudo DEBIAN_FRONTEND=noninteractive "$@"
	else
		die "root is required for: $*. Run it as root, or install sudo."
	fi
}

# apt_install PACKAGE... installs with updated lists, because old lists name files that mirrors have removed. It
# continues if the update fails, and waits for the lock of another apt.
apt_install() {
	as_root apt-get -qq update >&2 || say "apt-get update failed: see above; continuing with the existing lists"
	as_root apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@" >&2
}

# packages NAME... installs the Debian packages that are missing. dpkg-query prints a line per known package and fails
# for an unknown one; only those with status "ii" are installed.
packages() {
	installed=" $({ dpkg-query -W -f '${db:Status-Abbrev}${Package} ' "$@" 2>/dev/null || :; } | tr -s ' ' '\n' | paste -sd ' ' -) "
	missing=
	for p in "$@"; do
		case "$installed" in
		*" ii $p "*) ;;
		*) missing="$missing $p" ;;
		esac
	done
	[ -n "$missing" ] || return 0
	command -v apt-get >/dev/null || die "apt-get not found. Use Debian 12, or install manually:$missing."
	say "installing$missing"
	again apt_install $missing ||
		die "apt-get install$missing failed: see above. Check the network and /etc/apt/sources.list, or install the packages manually."
}

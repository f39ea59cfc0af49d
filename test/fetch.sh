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

# packages NAME... installs the Debian packages that are missing.
packages() {
	missing=$(missing_packages "$@")
	[ -n "$missing" ] || return 0
	command -v apt-get >/dev/null || die "apt-get not found. Use Debian 12, or install manually:$missing."
	say "installing$missing"
	again apt_install $missing ||
		die "apt-get install$missing failed: see above. Check the network and /etc/apt/sources.list, or install the packages manually."
}

# missing_packages NAME... prints the packages that are missing, each after a space. dpkg-query prints a line per known
# package and fails for an unknown one; only those with status "ii" are installed.
missing_packages() {
	installed=" $({ dpkg-query -W -f '${db:Status-Abbrev}${Package} ' "$@" 2>/dev/null || :; } | tr -s ' ' '\n' | paste -sd ' ' -) "
	for p in "$@"; do
		case "$installed" in
		*" ii $p "*) ;;
		*) printf ' %s' "$p" ;;
		esac
	done
}

# idle_packages NAME... is packages for daemons that only tests start. The services of the packages that it installs
# don't run, now or after a boot.
idle_packages() {
	fresh=$(missing_packages "$@")
	[ -n "$fresh" ] || return 0
	policy=${IRONVIP_POLICY_RC_D:-/usr/sbin/policy-rc.d} # apt asks it before it starts a service; 101: no
	(
		if [ ! -e "$policy" ]; then
			trap 'as_root rm -f "$policy"' EXIT # also of the signals below
			trap 'exit 130' HUP INT TERM
			printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
			as_root chmod 755 "$policy"
		fi
		packages $fresh
	) || exit
	units=$(dpkg -L $fresh | sed -n 's|^.*/lib/systemd/system/||p' | grep '\.service$' || :)
	if command -v systemctl >/dev/null && [ -n "$units" ]; then
		as_root systemctl -q disable $units || say "some services were not disabled: see above"
	fi
}

// Package systemd tests the Debian package on a machine with systemd and IPVS: vmrun boots a Debian root
// (test/debian.sh), in which the tests run. /packages has the package in two versions.
package systemd

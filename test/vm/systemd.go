//go:build linux

package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// performFlag makes the guest's binary run the job, as a process of the unit vmrun.service.
const performFlag = "-perform"

// performUnit runs the job when systemd has started everything else.
const performUnit = `[Unit]
Description=The program of vmrun
After=multi-user.target
[Service]
Type=exec
ExecStart=/init ` + performFlag + `
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS2
LimitNOFILE=65536:1048576
TasksMax=infinity
`

// becomeSystemd makes this process, pid 1, the systemd of the guest's root. It returns only with an error.
func becomeSystemd() error {
	// The first root file system can't be left with pivot_root, which systemd needs for the sandbox of a
	// unit. So a second mount of it becomes the root.
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"mount / again", func() error {
			if err := os.MkdirAll("/run/root", 0o755); err != nil {
				return err
			}
			return unix.Mount("/", "/run/root", "", unix.MS_BIND|unix.MS_REC, "")
		}},
		{"enter it", func() error { return unix.Chdir("/run/root") }},
		{"move it to /", func() error { return unix.Mount(".", "/", "", unix.MS_MOVE, "") }},
		{"chroot", func() error { return unix.Chroot(".") }},
		{"write the unit", func() error {
			const units = "/run/systemd/system"
			if err := os.MkdirAll(units+"/default.target.wants", 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(units+"/vmrun.service", []byte(performUnit), 0o644); err != nil {
				return err
			}
			if err := os.Symlink("../vmrun.service", units+"/default.target.wants/vmrun.service"); err != nil {
				return err
			}
			// The test's binary may be in /tmp, which systemd-tmpfiles would empty.
			if err := os.MkdirAll("/run/tmpfiles.d", 0o755); err != nil {
				return err
			}
			return os.Symlink("/dev/null", "/run/tmpfiles.d/tmp.conf")
		}},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	const systemd = "/lib/systemd/systemd"
	err := unix.Exec(systemd, []string{systemd}, []string{"PATH=" + guestPath, "TERM=dumb"})
	return fmt.Errorf("%s: %w", systemd, err)
}

// performMain is the main function of the process in vmrun.service.
func performMain() int {
	j, err := readJob()
	if err == nil {
		err = perform(j)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "vmrun: guest: %v\n", err)
		unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
		return exitRunner
	}
	return 0
}

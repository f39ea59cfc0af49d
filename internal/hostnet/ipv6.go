package hostnet

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
)

// NoIPv6 returns why a device, which need not exist yet, can't have IPv6 addresses in the network namespace of the calling
// thread, and what to do. It returns "" if it can, or if that is unknown.
func NoIPv6(device string) (why, remedy string) { return NoIPv6In(os.DirFS("/"), device) }

// NoIPv6In is NoIPv6 of a file system with proc/sys.
func NoIPv6In(files fs.FS, device string) (why, remedy string) {
	const root = "proc/sys/net/ipv6"
	if _, err := fs.Stat(files, "proc/sys/net"); err != nil {
		return "", ""
	}
	if _, err := fs.Stat(files, root); errors.Is(err, fs.ErrNotExist) {
		return "this kernel runs without IPv6", "boot without ipv6.disable=1, or remove the IPv6 ranges of the pools"
	}
	if _, err := fs.Stat(files, path.Join(root, "conf", device)); err != nil {
		device = "default" // the settings of devices to come
	}
	for _, name := range []string{device, "all"} {
		off, err := fs.ReadFile(files, path.Join(root, "conf", name, "disable_ipv6"))
		if err == nil && string(bytes.TrimSpace(off)) == "1" {
			return fmt.Sprintf("net.ipv6.conf.%s.disable_ipv6 is 1", name),
				"sysctl -w net.ipv6.conf.all.disable_ipv6=0 net.ipv6.conf.default.disable_ipv6=0, and remove what sets them; or remove the IPv6 ranges of the pools"
		}
	}
	return "", ""
}

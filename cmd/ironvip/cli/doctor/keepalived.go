package doctor

import (
	"fmt"
	"io/fs"
	"path"
	"slices"

	keepalivedconf "github.com/ironvip/ironvip/cmd/ironvip/cli/migrate/keepalived"
)

// keepalived checks whether its config flushes the IPVS services of others.
func keepalived(h Host, p process) Finding {
	config, ok := p.flag("use-file", "f")
	if !ok {
		config = "/etc/keepalived/keepalived.conf"
	}
	flush := ""
	err := keepalivedconf.Walk(filesOf(h.Files), path.Join("/", config), func(_ string, words []string) {
		if words[0] == "lvs_flush" || words[0] == "lvs_flush_on_stop" && !(len(words) > 1 && words[1] == "VS") {
			flush = words[0]
		}
	})
	switch {
	case err != nil:
		return Finding{Warn, "keepalived", fmt.Sprintf("keepalived runs here and its config %s can't be read; with lvs_flush it deletes every IPVS service", config),
			"run ironvip doctor as root, or take lvs_flush and lvs_flush_on_stop out"}
	case flush == "", slices.Contains(p.args, "--vrrp"), slices.Contains(p.args, "-P"):
		return Finding{OK, "keepalived", "keepalived runs here and doesn't change other programs' IPVS services", ""}
	}
	return Finding{Warn, "keepalived", "keepalived runs here with " + flush + ", which deletes every IPVS service", "take " + flush + " out of " + config + ", or run it with --vrrp"}
}

// filesOf has the files of a root directory by their absolute paths.
func filesOf(root fs.FS) keepalivedconf.Files {
	return keepalivedconf.Files{
		Read: func(path string) ([]byte, error) { return fs.ReadFile(root, path[1:]) },
		Glob: func(pattern string) ([]string, error) {
			found, err := fs.Glob(root, pattern[1:])
			for i := range found {
				found[i] = "/" + found[i]
			}
			return found, err
		},
	}
}

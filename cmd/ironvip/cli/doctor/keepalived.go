package doctor

import (
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strings"

	keepalivedconf "github.com/ironvip/ironvip/cmd/ironvip/cli/migrate/keepalived"
)

// keepalived checks whether its config flushes IPVS or uses addresses of our pools.
func keepalived(h Host, p process, o *ownRanges) []Finding {
	config, ok := p.flag("use-file", "f")
	if !ok {
		config = "/etc/keepalived/keepalived.conf"
	}
	var c keepalivedConfig
	if err := keepalivedconf.Walk(filesOf(h.Files), path.Join("/", config), c.statement); err != nil {
		return []Finding{{Warn, "keepalived",
			fmt.Sprintf("keepalived runs here and its config %s can't be read; with lvs_flush it deletes every IPVS service", config),
			"run ironvip doctor as root, or take lvs_flush and lvs_flush_on_stop out"}}
	}
	var out []Finding
	warn := func(text, fix string) { out = append(out, Finding{Warn, "keepalived", text, fix}) }
	vrrpOnly := slices.ContainsFunc(p.args, func(a string) bool { return a == "--vrrp" || a == "-P" })
	if c.flush != "" && !vrrpOnly {
		warn("keepalived runs here with "+c.flush+", which deletes every IPVS service", "take "+c.flush+" out of "+config+", or run it with --vrrp")
	}
	inPool := func(list []netip.Addr) []string {
		return texts(slices.DeleteFunc(slices.Clone(list), func(a netip.Addr) bool { return !o.inPool(a) }))
	}
	if mine := inPool(c.servers); len(mine) > 0 && !vrrpOnly {
		warn("keepalived runs here and has a virtual_server in our pools: "+firstFew(mine),
			"take these out of "+config+", or exclude their addresses from the pool")
	}
	if mine := inPool(c.addrs); len(mine) > 0 {
		warn("keepalived runs here and brings up addresses of our pools: "+firstFew(mine), "exclude these from the pool")
	}
	if len(out) == 0 {
		return []Finding{{OK, "keepalived", "keepalived runs here and doesn't change other programs' IPVS services", ""}}
	}
	return out
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

// keepalivedConfig is the relevant part of a keepalived.conf and the files that it
// includes.
type keepalivedConfig struct {
	flush   string       // lvs_flush or lvs_flush_on_stop; "" without
	servers []netip.Addr // of virtual servers and their groups
	addrs   []netip.Addr // virtual IP addresses of VRRP
}

// statement processes one line, or the head of a block, within a block.
func (c *keepalivedConfig) statement(block string, words []string) {
	address := func(list *[]netip.Addr, text string) {
		text, _, _ = strings.Cut(text, "/")
		text, _, _ = strings.Cut(text, "-") // a range's last part
		if a, err := netip.ParseAddr(text); err == nil {
			*list = append(*list, a)
		}
	}
	switch first := words[0]; {
	case first == "lvs_flush", first == "lvs_flush_on_stop" && !(len(words) > 1 && words[1] == "VS"):
		c.flush = first
	case first == "virtual_server" && len(words) > 1:
		address(&c.servers, words[1])
	case block == "virtual_server_group":
		address(&c.servers, first)
	case block == "virtual_ipaddress", block == "virtual_ipaddress_excluded":
		address(&c.addrs, first)
	}
}

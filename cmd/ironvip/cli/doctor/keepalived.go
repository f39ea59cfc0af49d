package doctor

import (
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strings"
)

// keepalivedFiles is how many files of a configuration are read at most.
const keepalivedFiles = 1000

// keepalived checks whether its config flushes IPVS or uses addresses of our pools.
func keepalived(h Host, p process, o *ownRanges) []Finding {
	config, ok := p.flag("use-file", "f")
	if !ok {
		config = "/etc/keepalived/keepalived.conf"
	}
	c := keepalivedConfig{files: h.Files, read: map[string]bool{}}
	if err := c.load(strings.TrimPrefix(path.Clean("/"+config), "/")); err != nil {
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

// keepalivedConfig is the relevant part of a keepalived.conf and the files that it
// includes.
type keepalivedConfig struct {
	files fs.FS
	read  map[string]bool

	flush   string       // lvs_flush or lvs_flush_on_stop; "" without
	servers []netip.Addr // of virtual servers and their groups
	addrs   []netip.Addr // virtual IP addresses of VRRP
}

// load reads one file, relative to the root, and what it includes.
func (c *keepalivedConfig) load(file string) error {
	if c.read[file] || len(c.read) >= keepalivedFiles {
		return nil
	}
	c.read[file] = true
	b, err := fs.ReadFile(c.files, file)
	if err != nil {
		return err
	}
	var blocks []string // the open ones, innermost last
	var words []string
	end := func() {
		if len(words) > 0 {
			c.statement(file, blocks, words)
		}
		words = nil
	}
	for l := range strings.Lines(string(b)) {
		if i := strings.IndexAny(l, "#!"); i >= 0 {
			l = l[:i]
		}
		for _, w := range strings.Fields(strings.NewReplacer("{", " { ", "}", " } ").Replace(l)) {
			switch w {
			case "{":
				name := ""
				if len(words) > 0 {
					name = words[0]
				}
				end()
				blocks = append(blocks, name)
			case "}":
				end()
				blocks = blocks[:max(len(blocks)-1, 0)]
			default:
				words = append(words, w)
			}
		}
		if len(words) == 1 && strings.HasPrefix(words[0], "virtual_") {
			continue // its brace is on the next line
		}
		end()
	}
	return nil
}

// statement processes one line, or the head of a block.
func (c *keepalivedConfig) statement(file string, blocks, words []string) {
	inside := ""
	if len(blocks) > 0 {
		inside = blocks[len(blocks)-1]
	}
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
	case inside == "virtual_server_group":
		address(&c.servers, first)
	case inside == "virtual_ipaddress", inside == "virtual_ipaddress_excluded":
		address(&c.addrs, first)
	case strings.HasPrefix(first, "include") && len(first) <= len("includex") && len(words) > 1:
		pattern := words[1]
		if !path.IsAbs(pattern) {
			pattern = path.Join(path.Dir("/"+file), pattern)
		}
		found, _ := fs.Glob(c.files, strings.TrimPrefix(path.Clean(pattern), "/"))
		for _, f := range found {
			_ = c.load(f) // keepalived ignores the error by default, too
		}
	}
}

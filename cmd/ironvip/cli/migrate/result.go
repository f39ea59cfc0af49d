package migrate

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/vip/spec"
)

// PoolName is the name of the pool that has the addresses of a Result.
const PoolName = "imported"

// Place is a line of a file.
type Place struct {
	File string
	Line int // from 1; 0: the whole file
}

// String returns "keepalived.conf:12".
func (p Place) String() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d", p.File, p.Line)
}

// From names a place for a note at another one: "line 12", with the file if it is another.
func (p Place) From(at Place) string {
	if p.File != at.File {
		return p.String()
	}
	return fmt.Sprintf("line %d", p.Line)
}

// Note is a part of the input that the result does not have, or that a reader has to check.
type Note struct {
	Place
	Text string // what is missing, and what to do about it
}

// String returns "keepalived.conf:12: text".
func (n Note) String() string { return n.Place.String() + ": " + n.Text }

// Service is a converted service.
type Service struct {
	Place
	spec.Service
}

// Announce is what the input says about hosts that share addresses.
type Announce struct {
	Mode       string       // announce.mode; "": the pools have theirs
	Peers      []netip.Addr // other hosts, and this one if the input names it
	Interfaces []string     // that have the addresses; none: not stated
	Priority   int          // of this host, the highest one owns; 0: not stated
	Routers    []Router
}

// Pool is a [[pool]] of ironvip.toml.
type Pool struct {
	Name       string   `json:"name"`
	CIDRs      []string `json:"cidrs"`
	AutoAssign *bool    `json:"auto_assign,omitempty"`
	Namespaces []string `json:"namespaces,omitempty"`
	Announce   string   `json:"announce,omitempty"`
	Interfaces []string `json:"announce_interfaces,omitempty"`
	Priority   int      `json:"announce_priority,omitempty"` // 0: that of the host
	BGP        *Routes  `json:"bgp,omitempty"`
}

// Routes is the policy of the routes of a pool.
type Routes struct {
	Communities []string `json:"communities,omitempty"`
	LocalPref   *int     `json:"local_pref,omitempty"`
	Peers       []string `json:"peers,omitempty"`
	HostRoutes  *bool    `json:"host_routes,omitempty"`
	Aggregate   []string `json:"aggregate,omitempty"`
}

// Same reports whether two policies differ in their aggregates only.
func (r Routes) Same(other Routes) bool {
	other.HostRoutes, other.Aggregate = r.HostRoutes, r.Aggregate
	return reflect.DeepEqual(r, other)
}

// Router is an [[announce.bgp]] of ironvip.toml.
type Router struct {
	Peer         string `json:"peer,omitempty"`
	Interface    string `json:"interface,omitempty"`
	ASN          int    `json:"asn"`
	LocalASN     int    `json:"local_asn"`
	Port         int    `json:"port,omitempty"`
	Source       string `json:"source,omitempty"`
	VRF          string `json:"vrf,omitempty"`
	Multihop     int    `json:"multihop,omitempty"`
	PasswordFile string `json:"password_file,omitempty"`
	BFD          string `json:"bfd,omitempty"`
}

// Hook is a program that runs for events, as a [[hook]] of ironvip.toml.
type Hook struct {
	Name    string   `json:"name"`
	Events  []string `json:"events"`
	Objects []string `json:"objects"`
	Command []string `json:"command"`
}

// LAN reports whether VIPs are announced at layer 2 by a host that knows no other one.
func (r *Result) LAN() bool {
	mode := announce.L2.String()
	return r.Announce != nil && len(r.Announce.Peers) == 0 &&
		(r.Announce.Mode == mode || slices.ContainsFunc(r.Pools, func(p Pool) bool { return p.Announce == mode }))
}

// Masked returns a range without the bits behind its length, which are a note.
func (r *Result) Masked(at Place, text string) string {
	prefix, err := netip.ParsePrefix(text)
	if err != nil || prefix.Masked() == prefix {
		return text
	}
	r.Note(at, "%s has bits set behind its length: %s is used", text, prefix.Masked())
	return prefix.Masked().String()
}

// PasswordFile names the file for a password of BGP: one for each.
func (r *Result) PasswordFile(password string) string {
	i := slices.Index(r.passwords, password)
	if i < 0 {
		i = len(r.passwords)
		r.passwords = append(r.passwords, password)
	}
	if i == 0 {
		return "bgp-password"
	}
	return fmt.Sprintf("bgp-password-%d", i+1)
}

// AddInterface adds an interface that isn't there yet.
func (a *Announce) AddInterface(name string) {
	if name != "" && !slices.Contains(a.Interfaces, name) {
		a.Interfaces = append(a.Interfaces, name)
	}
}

// Result is what a converter made of a text.
type Result struct {
	Services  []Service
	Addresses []netip.Addr // of the services, sorted; PoolName has them
	Pools     []Pool       // others
	Announce  *Announce    // nil: the input has nothing about announcements
	Hooks     []Hook
	Notes     []Note // by file and line, after SortNotes
	Refused   int    // the notes about what "ironvip config validate" refuses in the result, and about a text that can't be read

	noted map[Place]map[string]bool // the words of the notes
	hooks map[string]int            // the names of Hooks

	passwords []string // of BGP
}

// Empty reports whether nothing was converted.
func (r *Result) Empty() bool {
	return len(r.Services)+len(r.Addresses)+len(r.Pools)+len(r.Hooks) == 0 && r.Announce == nil
}

// AddHook adds a hook, and makes its name a DNS label that no other hook has.
func (r *Result) AddHook(h Hook) {
	if r.hooks == nil {
		r.hooks = map[string]int{}
	}
	h.Name = uniqueName(r.hooks, label(h.Name))
	r.Hooks = append(r.Hooks, h)
}

// Note adds a note.
func (r *Result) Note(at Place, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.Notes = append(r.Notes, Note{at, text})
	if r.noted == nil {
		r.noted = map[Place]map[string]bool{}
	}
	if r.noted[at] == nil {
		r.noted[at] = map[string]bool{}
	}
	for _, word := range strings.FieldsFunc(text, func(c rune) bool { return strings.ContainsRune(" \t\n\",;:()", c) }) {
		r.noted[at][word] = true
	}
}

// NoteUnread notes the words of a statement that nobody has read, unless a note of its line has them.
func (r *Result) NoteUnread(s *Statement) {
	var lost []string
	for _, word := range s.unread() {
		if !r.noted[s.Place][strings.Trim(word, "\",;:()")] {
			lost = append(lost, word)
		}
	}
	switch whole := s.String(); strings.Join(lost, " ") {
	case "":
	case whole:
		r.Note(s.Place, "%q is not converted", whole)
	default:
		r.Note(s.Place, "%q of %q is not converted", strings.Join(lost, " "), whole)
	}
}

// SortNotes orders the notes by line, and by file in the order in which the files have notes. Equal
// notes of one line become one: a default is read once for each section that has it.
func (r *Result) SortNotes() {
	files := map[string]int{}
	for _, n := range r.Notes {
		if _, known := files[n.File]; !known {
			files[n.File] = len(files)
		}
	}
	slices.SortStableFunc(r.Notes, func(a, b Note) int {
		return cmp.Or(cmp.Compare(files[a.File], files[b.File]), cmp.Compare(a.Line, b.Line))
	})
	seen := map[Note]bool{}
	r.Notes = slices.DeleteFunc(r.Notes, func(n Note) bool {
		defer func() { seen[n] = true }()
		return seen[n]
	})
}

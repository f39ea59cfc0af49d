// Package ipvsadm converts the commands of ipvsadm that make the services of the kernel and their servers: a text of them, as
// "ipvsadm -Sn" prints it, or those of the kernel itself. Commands that have no equivalent become notes.
package ipvsadm

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// defaultPersistence is ipvsadm's, in seconds.
const defaultPersistence = 300

// Convert reads a text. name is its name in notes.
func Convert(name, text string) migrate.Result {
	c := New()
	number := 0
	for line := range strings.SplitSeq(text, "\n") {
		number++
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if filepath.Base(words[0]) == "ipvsadm" { // a script that calls it
			words = words[1:]
		}
		c.Run(migrate.Place{File: name, Line: number}, words)
	}
	return c.Services()
}

// ConvertCommands converts commands that are in no file. Their place in notes is the service: "ipvs -t 10.0.0.1:80".
func ConvertCommands(commands [][]string) migrate.Result {
	c := New()
	for _, words := range commands {
		c.Run(migrate.Place{File: "ipvs " + strings.Join(words[1:3], " ")}, words)
	}
	return c.Services()
}

// Converter collects the services by their target, as it is written.
type Converter struct {
	migrate.Result
	listeners []migrate.Listener
	byTarget  map[string]int // index in listeners; -1: not converted, which a note said
}

// New returns a Converter without services.
func New() *Converter { return &Converter{byTarget: map[string]int{}} }

// Services returns the result of all commands.
func (c *Converter) Services() migrate.Result {
	c.Add(slices.DeleteFunc(c.listeners, func(l migrate.Listener) bool { return l.Ports == nil })) // deleted ones
	c.SortNotes()
	return c.Result
}

// command is one line, with its options by their short names.
type command struct {
	migrate.Place
	verb             string // "-A", "-E" or "-D" of a service, "-a", "-e" or "-d" of a server, "-C"
	protocol, target string // "-t" and "10.0.0.1:80", for example
	options          map[string]string
}

// sorted returns the options in a fixed order.
func (cmd *command) sorted() []string { return slices.Sorted(maps.Keys(cmd.options)) }

// aliases are the short names of options with a long one.
var aliases = map[string]string{
	"--add-service": "-A", "--edit-service": "-E", "--delete-service": "-D", "--clear": "-C",
	"--add-server": "-a", "--edit-server": "-e", "--delete-server": "-d", "--tcp-service": "-t", "--udp-service": "-u", "--sctp-service": "--sctp-service",
	"--fwmark-service": "-f", "--scheduler": "-s", "--persistent": "-p", "--netmask": "-M", "--real-server": "-r",
	"--gatewaying": "-g", "--ipip": "-i", "--masquerading": "-m", "--weight": "-w", "--u-threshold": "-x",
	"--l-threshold": "-y", "--ops": "-o", "--sched-flags": "-b", "--ipv6": "-6", "--numeric": "-n",
}

// The options without a value: commands, and others.
const (
	verbs = "AEDCaed"
	flags = "gimo6n"
)

// apart divides options that are written together: "-srr" is "-s" and "rr", "-At" is "-A" and "-t".
func apart(words []string) (out []string) {
	for _, word := range words {
		if name, value, long := strings.Cut(word, "="); long && aliases[name] != "" {
			out = append(out, aliases[name], value)
			continue
		}
		for len(word) > 2 && word[0] == '-' && word[1] != '-' {
			out = append(out, word[:2])
			if word = word[2:]; strings.Contains(verbs+flags, out[len(out)-1][1:]) {
				word = "-" + word
			}
		}
		out = append(out, cmp.Or(aliases[word], word))
	}
	return out
}

// Run carries out a command. It returns the service that the command has made or changed, until another one is added; nil if a
// note says why the command has no effect.
func (c *Converter) Run(at migrate.Place, words []string) *migrate.Listener {
	cmd := command{Place: at, options: map[string]string{}}
	words = apart(words)
	for i := 0; i < len(words); i++ {
		word := words[i]
		value := ""
		hasValue := i+1 < len(words) && !strings.HasPrefix(words[i+1], "-")
		switch {
		case len(word) == 2 && word[0] == '-' && strings.Contains(verbs, word[1:]):
			if cmd.verb != "" {
				c.Note(at, "%s is not converted: the line has %s", word, cmd.verb)
				continue
			}
			cmd.verb = word
			continue
		case !strings.HasPrefix(word, "-"):
			c.Note(at, "%q is not understood: ignored", word)
			continue
		case len(word) == 2 && strings.Contains(flags, word[1:]):
		case hasValue:
			i++
			value = words[i]
		case word != "-p": // its value may be omitted
			c.Note(at, "%s has no value: ignored", word)
			continue
		}
		switch word {
		case "-t", "-u", "-f", "--sctp-service":
			cmd.protocol, cmd.target = word, value
		default:
			cmd.options[word] = value
		}
	}
	switch key := cmd.protocol + " " + cmd.target; {
	case cmd.verb == "-C":
		c.listeners = nil
		clear(c.byTarget)
	case cmd.verb == "" || cmd.target == "":
		c.Note(at, "no service or server: ignored")
	case cmd.verb == "-A" || cmd.verb == "-E":
		return c.service(&cmd, key)
	default:
		index, known := c.byTarget[key]
		switch {
		case !known:
			c.Note(at, "the service %s is not there before this line: ignored", cmd.target)
		case index < 0: // a note says why it is not converted
		case cmd.verb == "-D":
			c.listeners[index].Ports = nil // see Services
			delete(c.byTarget, key)
		default:
			c.server(&cmd, &c.listeners[index])
			return &c.listeners[index]
		}
	}
	return nil
}

// service converts "-A" and "-E". The second one keeps the servers.
func (c *Converter) service(cmd *command, key string) *migrate.Listener {
	if index, known := c.byTarget[key]; known != (cmd.verb == "-E") {
		c.Note(cmd.Place, "%s %s is ignored, as ipvsadm does: the service is there with -A, and is not there with -E", cmd.verb, cmd.target)
		return nil
	} else if known && index < 0 {
		return nil // a note says why it is not converted
	}
	before := c.byTarget[key]
	c.byTarget[key] = -1
	if cmd.protocol == "-f" {
		c.Note(cmd.Place, "the service of packet mark %s is not converted: define a service for each address, or one with a range of ports", cmd.target)
		return nil
	}
	at, err := netip.ParseAddrPort(cmd.target)
	if err != nil {
		c.Note(cmd.Place, "%q is not an address and port: not converted", cmd.target)
		return nil
	}
	l := migrate.Listener{Place: cmd.Place, Addr: at.Addr()}
	port := spec.Port{Port: spec.PortRange{First: int(at.Port())}}
	if at.Port() == 0 {
		port.Port = spec.PortRange{First: 1, Last: 65535}
	}
	switch cmd.protocol {
	case "-u":
		port.Protocol = vip.UDP.String()
	case "--sctp-service":
		port.Protocol = vip.SCTP.String()
	}
	l.Ports = []spec.Port{port}
	l.Service.Scheduler = vip.WeightedLeastConnection.String()
	for _, option := range cmd.sorted() {
		c.serviceOption(cmd, &l.Service, option, cmd.options[option])
	}
	if cmd.verb == "-E" {
		l.Place, l.Backends, l.Service.Forward = c.listeners[before].Place, c.listeners[before].Backends, c.listeners[before].Service.Forward
		c.byTarget[key], c.listeners[before] = before, l
		return &c.listeners[before]
	}
	c.byTarget[key] = len(c.listeners)
	c.listeners = append(c.listeners, l)
	return &c.listeners[c.byTarget[key]]
}

func (c *Converter) serviceOption(cmd *command, s *spec.Service, option, value string) {
	switch option {
	case "-s":
		c.Scheduler(cmd.Place, s, value)
	case "-p":
		n := defaultPersistence
		if value != "" {
			if read, ok := c.Number(cmd.Place, "-p", value, 1, math.MaxInt32, fmt.Sprintf("%d is used", n)); ok {
				n = read
			}
		}
		s.Affinity = c.Affinity(cmd.Place, time.Duration(n)*time.Second)
	case "-M":
		if value != "255.255.255.255" && value != "128" {
			c.Note(cmd.Place, "the netmask %s is not converted: affinity is by the client's whole address", value)
		}
	case "-o":
		s.SchedulerFlags = append(s.SchedulerFlags, "one-packet")
	case "-b":
		for flag := range strings.SplitSeq(value, ",") {
			switch flag {
			case "sh-fallback", "mh-fallback", "flag-1":
				s.SchedulerFlags = append(s.SchedulerFlags, "fallback")
			case "sh-port", "mh-port", "flag-2":
				s.SchedulerFlags = append(s.SchedulerFlags, "port")
			default:
				c.Note(cmd.Place, "the flag %s is not converted", flag)
			}
		}
	case "-6", "-n":
	default:
		c.Note(cmd.Place, "%s is not converted", strings.TrimSpace(option+" "+value))
	}
}

// server converts "-a", "-e" and "-d".
func (c *Converter) server(cmd *command, l *migrate.Listener) {
	to, err := netip.ParseAddrPort(cmd.options["-r"])
	if err != nil {
		addr, err := netip.ParseAddr(strings.Trim(cmd.options["-r"], "[]"))
		if err != nil {
			c.Note(cmd.Place, "%q is not an address and port: not converted", cmd.options["-r"])
			return
		}
		to = netip.AddrPortFrom(addr, 0)
	}
	b := migrate.Backend{Place: cmd.Place, Backend: spec.Backend{Address: to.Addr().String(), Port: spec.PortNumber(to.Port())}}
	index := slices.IndexFunc(l.Backends, func(other migrate.Backend) bool { return other.Address == b.Address && other.Port == b.Port })
	switch {
	case (index < 0) != (cmd.verb == "-a"):
		c.Note(cmd.Place, "%s %s is ignored, as ipvsadm does: the server is there with -a, and is not there otherwise", cmd.verb, cmd.options["-r"])
		return
	case cmd.verb == "-d":
		l.Backends = slices.Delete(l.Backends, index, index+1)
		return
	}
	forward := vip.ForwardDirect.String() // ipvsadm's default
	for _, option := range cmd.sorted() {
		value := cmd.options[option]
		switch option {
		case "-r", "-g":
		case "-m":
			forward = ""
		case "-i":
			forward = vip.ForwardTunnel.String()
		case "-w":
			if n, ok := c.Number(cmd.Place, "the weight", value, 0, vip.MaxWeight, "not converted"); ok {
				b.Weight = migrate.Weight(n)
			}
		case "-x":
			b.MaxConnections, _ = c.Number(cmd.Place, "the upper threshold", value, 0, vip.MaxMaxConnections, "not converted")
		case "--tun-type":
			if value != "ipip" {
				c.Note(cmd.Place, "the tunnel type %s is not converted: only IP in IP is available", value)
			}
		case "-y":
			if value != "0" {
				c.Note(cmd.Place, "the lower threshold %s is not converted: use max_connections", value)
			}
		default:
			c.Note(cmd.Place, "%s is not converted", strings.TrimSpace(option+" "+value))
		}
	}
	if forward != "" { // ipvsadm takes the service's port: only translation changes it
		b.Port = 0
	}
	if index >= 0 {
		l.Backends[index] = b
	} else {
		l.Backends = append(l.Backends, b)
	}
	if len(l.Backends) == 1 {
		l.Service.Forward = forward
	} else if l.Service.Forward != forward {
		c.Note(cmd.Place, "the forwarding method differs from that of the first server: a service has one forwarding method")
	}
}

// Package ipvsadm converts what "ipvsadm -Sn" prints: the services of the kernel, one command per
// line, and the servers of each. Lines that have no equivalent become notes.
package ipvsadm

import (
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
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
	c := &converter{byTarget: map[string]int{}}
	number := 0
	for line := range strings.SplitSeq(text, "\n") {
		number++
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if words[0] == "ipvsadm" { // a script that calls it
			words = words[1:]
		}
		c.line(migrate.Place{File: name, Line: number}, words)
	}
	c.Add(c.listeners)
	c.SortNotes()
	return c.Result
}

// converter collects the services by their target, as it is written.
type converter struct {
	migrate.Result
	listeners []migrate.Listener
	byTarget  map[string]int // index in listeners; -1: not converted, which a note said
}

// command is one line, with its options by their short names.
type command struct {
	migrate.Place
	verb             string // "-A" or "-a"
	protocol, target string // "-t" and "10.0.0.1:80", for example
	options          map[string]string
}

// sorted returns the options in a fixed order.
func (cmd *command) sorted() []string { return slices.Sorted(maps.Keys(cmd.options)) }

// aliases are the short names of options with a long one.
var aliases = map[string]string{
	"--add-service": "-A", "--add-server": "-a", "--tcp-service": "-t", "--udp-service": "-u", "--sctp-service": "--sctp-service",
	"--fwmark-service": "-f", "--scheduler": "-s", "--persistent": "-p", "--netmask": "-M", "--real-server": "-r",
	"--gatewaying": "-g", "--ipip": "-i", "--masquerading": "-m", "--weight": "-w", "--u-threshold": "-x",
	"--l-threshold": "-y", "--ops": "-o", "--sched-flags": "-b", "--ipv6": "-6", "--numeric": "-n",
}

// flags are the options without a value.
var flags = map[string]bool{"-g": true, "-i": true, "-m": true, "-o": true, "-6": true, "-n": true}

func (c *converter) line(at migrate.Place, words []string) {
	cmd := command{Place: at, options: map[string]string{}}
	for i := 0; i < len(words); i++ {
		word := words[i]
		if short, ok := aliases[word]; ok {
			word = short
		}
		value := ""
		hasValue := i+1 < len(words) && !strings.HasPrefix(words[i+1], "-")
		switch {
		case word == "-A" || word == "-a":
			cmd.verb = word
			continue
		case !strings.HasPrefix(word, "-"):
			c.Note(at, "%q is not understood: ignored", word)
			continue
		case flags[word]:
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
	switch {
	case cmd.verb == "" || cmd.target == "":
		c.Note(at, "no service or server: ignored")
	case cmd.verb == "-A":
		c.service(&cmd)
	default:
		c.server(&cmd)
	}
}

// service converts "-A".
func (c *converter) service(cmd *command) {
	key := cmd.protocol + " " + cmd.target
	c.byTarget[key] = -1
	if cmd.protocol == "-f" {
		c.Note(cmd.Place, "the service of packet mark %s is not converted: define a service for each address, or one with a range of ports", cmd.target)
		return
	}
	at, err := netip.ParseAddrPort(cmd.target)
	if err != nil {
		c.Note(cmd.Place, "%q is not an address and port: not converted", cmd.target)
		return
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
	c.byTarget[key] = len(c.listeners)
	c.listeners = append(c.listeners, l)
}

func (c *converter) serviceOption(cmd *command, s *spec.Service, option, value string) {
	switch option {
	case "-s":
		c.Scheduler(cmd.Place, s, value)
	case "-p":
		n := defaultPersistence
		if value != "" {
			read, err := strconv.Atoi(value)
			if err == nil && read > 0 && read <= math.MaxInt32 {
				n = read
			} else {
				c.Note(cmd.Place, "-p %q is not a number of seconds: %d is used", value, n)
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

// server converts "-a".
func (c *converter) server(cmd *command) {
	index, known := c.byTarget[cmd.protocol+" "+cmd.target]
	if !known {
		c.Note(cmd.Place, "the service %s is not there before this line: ignored", cmd.target)
		return
	}
	if index < 0 {
		return
	}
	l := &c.listeners[index]
	to, err := netip.ParseAddrPort(cmd.options["-r"])
	if err != nil {
		addr, err := netip.ParseAddr(strings.Trim(cmd.options["-r"], "[]"))
		if err != nil {
			c.Note(cmd.Place, "%q is not an address and port: not converted", cmd.options["-r"])
			return
		}
		to = netip.AddrPortFrom(addr, 0)
	}
	b := spec.Backend{Address: to.Addr().String(), Port: spec.PortNumber(to.Port())}
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
			n, err := strconv.Atoi(value)
			if err != nil || n < 0 || n > vip.MaxWeight {
				c.Note(cmd.Place, "the weight %q is not converted", value)
				continue
			}
			b.Weight = migrate.Weight(n)
		case "-x":
			n, err := strconv.Atoi(value)
			if err != nil || n < 0 || n > vip.MaxMaxConnections {
				c.Note(cmd.Place, "the upper threshold %q is not converted: it is not a number from 0 to %d", value, vip.MaxMaxConnections)
				continue
			}
			b.MaxConnections = n
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
	if len(l.Service.Backends) == 0 {
		l.Service.Forward = forward
	} else if l.Service.Forward != forward {
		c.Note(cmd.Place, "the forwarding method differs from that of the first server: a service has one forwarding method")
	}
	l.Service.Backends = append(l.Service.Backends, b)
}

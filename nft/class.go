package nft

import (
	"fmt"
	"strings"

	"github.com/ironvip/ironvip/vip"
)

// choice is how a class chooses the slot of a new connection.
type choice uint8

const (
	chooseNone          choice = iota // no usable backend: the packet stays with this host, which refuses it
	chooseAny                         // any slot, at random
	chooseBySource                    // by the client's address
	chooseByClient                    // by the client's address and port
	chooseByDestination               // by the virtual address
	choices
)

func (c choice) hashes() bool { return c >= chooseBySource }

// class is what services have in common that share rules. Each class has a number, and a chain per
// origin where it is in use. The chain's name has all of it, for an agent that starts.
type class struct {
	choice     choice
	slots      uint16 // number of slots, up to maxSlots
	masquerade vip.Masquerade
	restricted bool   // only clients in the service's source ranges
	keepPort   bool   // the backend gets the port that the client connects to
	affinity   uint32 // seconds that a client stays with its backend; 0: off
	limits     vip.SourceLimits

	// The rules don't depend on these.
	scheduler vip.Scheduler
	onHost    bool
	synProxy  bool
	rounded   bool   // the slots have rounded shares
	without   choice // that of a service without usable backends
}

// maxSlots bounds the slots of a service.
const maxSlots = 8191

// A service's element in the map services is its class's number and its own.
const (
	shiftClass = 21
	maskNumber = 1<<shiftClass - 1
	maskClass  = 0x7fffffff &^ maskNumber
	maxClass   = maskClass >> shiftClass
	// maxServices leaves numbers for changes, after which the table is rebuilt.
	maxServices = maskNumber / 2
)

// chain returns the name of a class's chain at an origin.
func (c class) chain(o origin) string { return c.name() + "_" + o.String() }

func (c class) name() string {
	flags := 0
	for i, set := range []bool{c.restricted, c.keepPort, c.onHost, c.rounded, c.synProxy} {
		if set {
			flags |= 1 << i
		}
	}
	return fmt.Sprintf("class_%d_%d_%d_%d_%d_%d_%d_%d_%d", c.choice, c.slots, c.masquerade, flags, c.affinity, c.scheduler, c.without,
		c.limits.MaxConnectionsPerSource, c.limits.MaxRatePerSource)
}

// classOf returns the class with a chain of that name at an origin.
func classOf(chain string, o origin) (c class, ok bool) {
	var flags int
	_, err := fmt.Sscanf(chain, "class_%d_%d_%d_%d_%d_%d_%d_%d_%d_", &c.choice, &c.slots, &c.masquerade, &flags, &c.affinity, &c.scheduler, &c.without,
		&c.limits.MaxConnectionsPerSource, &c.limits.MaxRatePerSource)
	for i, set := range []*bool{&c.restricted, &c.keepPort, &c.onHost, &c.rounded, &c.synProxy} {
		*set = flags&(1<<i) != 0
	}
	return c, err == nil && c.chain(o) == chain
}

// isClassChain reports whether a chain's name is one of a class.
func isClassChain(name string) bool { return strings.HasPrefix(name, "class_") }

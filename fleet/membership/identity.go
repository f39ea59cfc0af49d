package membership

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"os"

	"github.com/ironvip/ironvip/internal/store"
)

// Identity distinguishes this host from every other one. The zero Identity gets an ID when the
// tree is made.
type Identity struct {
	ID   string // a UUID from the state file
	File string // store.DB.FileID: proves that an earlier run has ended; "" proves nothing
	// Hostname and Address are shown to other nodes that find the ID or the node's name in use.
	Hostname string
	Address  string
}

type savedIdentity struct {
	ID string `json:"id"`
}

const identityKey = "id"

func identityBucket(db *store.DB) *store.Bucket[savedIdentity] {
	return store.NewBucket[savedIdentity](db, "host")
}

// LoadIdentity returns the identity in the state file. A new state file gets one.
func LoadIdentity(db *store.DB) (Identity, error) {
	saved, known, err := identityBucket(db).Get(identityKey)
	if err == nil && !known {
		saved.ID, err = replaceID(db)
	}
	if err != nil {
		return Identity{}, fmt.Errorf("read the host id: %w", err)
	}
	hostname, _ := os.Hostname() // shown to people, and not needed
	return Identity{ID: saved.ID, File: db.FileID(), Hostname: hostname, Address: outboundAddress()}, nil
}

// NewIdentity gives the state file a new identity and returns the IDs before and after. The old
// one is "" if there was none that could be read.
func NewIdentity(db *store.DB) (before, after string, err error) {
	saved, _, _ := identityBucket(db).Get(identityKey) // also replaces one that can't be read
	after, err = replaceID(db)
	return saved.ID, after, err
}

func replaceID(db *store.DB) (string, error) {
	id := newUUID()
	return id, identityBucket(db).Put(identityKey, savedIdentity{id})
}

// newUUID returns a random (version 4) UUID.
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// outboundAddress returns the source address of the default route, or "". It sends nothing.
func outboundAddress() string {
	for _, documentation := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} {
		conn, err := net.Dial("udp", documentation)
		if err != nil {
			continue
		}
		defer conn.Close()
		return conn.LocalAddr().(*net.UDPAddr).IP.String()
	}
	return ""
}

// hostRow is the value of a host's lock, hosts/<id>.
type hostRow struct {
	Version  int    `json:"v"`
	Node     string `json:"node"`
	Hostname string `json:"hostname,omitempty"`
	Address  string `json:"address,omitempty"`
	Started  int64  `json:"started"` // Unix milliseconds
	File     string `json:"file,omitempty"`
}

func (m *Member) hostRow() []byte {
	id := m.o.Identity
	text, err := json.Marshal(hostRow{1, m.o.Node, id.Hostname, id.Address, m.started.UnixMilli(), id.File})
	if err != nil {
		panic("fleet: host row: " + err.Error()) // strings and numbers
	}
	return text
}

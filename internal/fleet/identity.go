package fleet

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/ironvip/ironvip/internal/fleet/consulkv"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/vip"
)

// Identity distinguishes this host from every other one. The zero Identity gets an ID when the
// tree is made.
type Identity struct {
	ID   string // a UUID from the state file
	File string // store.DB.FileID: proves that an earlier run has ended; "" proves nothing
	// What others are shown when they find the ID or the node's name in use.
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

func (t *Tree) hostRow() []byte {
	id := t.o.Identity
	text, err := json.Marshal(hostRow{1, t.o.Node, id.Hostname, id.Address, t.started.UnixMilli(), id.File})
	if err != nil {
		panic("fleet: host row: " + err.Error()) // strings and numbers
	}
	return text
}

// DuplicateNodeError says that another live host uses this host's ID or its node name.
type DuplicateNodeError struct {
	ID     string // set when it is the host id
	Name   string // this host's node name
	Holder string // names the other host
	hint   string
}

func (e *DuplicateNodeError) Error() string {
	if e.ID != "" {
		return fmt.Sprintf("host id %s is in use: %s has the same one", e.ID, e.Holder)
	}
	return fmt.Sprintf("node name %q is in use: %s has the same one", e.Name, e.Holder)
}

// Hint says what to do about it.
func (e *DuplicateNodeError) Hint() string { return e.hint }

// duplicate describes the holder of the host's lock or of the node's row.
func (t *Tree) duplicate(ctx context.Context, held *heldError) *DuplicateNodeError {
	e := &DuplicateNodeError{Name: t.o.Node, hint: "set node.name in ironvip.toml to another name on one of the two hosts, and restart it"}
	var row hostRow
	if held.pair == held.host {
		e.ID = t.o.Identity.ID
		_ = json.Unmarshal(held.pair.Value, &row)
		e.hint = "if this host is a copy of that one: systemctl stop ironvip, ironvip node new-id"
		if row.Node == t.o.Node {
			e.hint += ", set node.name in ironvip.toml to another name"
		}
		e.hint += ", systemctl start ironvip"
	} else {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		rows, _, _ := consulkv.ListAll(ctx, t.o.KV, t.paths.hosts, consulkv.Query{}) // without them, the session names it
		for _, p := range rows {
			if p.Session == held.pair.Session {
				_ = json.Unmarshal(p.Value, &row)
			}
		}
	}
	if row.Node == "" {
		e.Holder = "the owner of session " + held.pair.Session
		return e
	}
	e.Holder = fmt.Sprintf("node %q", row.Node)
	if row.Hostname != "" {
		e.Holder += " on host " + row.Hostname
	}
	if row.Address != "" {
		e.Holder += " (" + row.Address + ")"
	}
	e.Holder += ", started " + time.UnixMilli(row.Started).UTC().Format(time.RFC3339)
	return e
}

// duplicateProblem is the error as `ironvip status` shows it.
func (t *Tree) duplicateProblem(e *DuplicateNodeError) vip.Problem {
	place := t.paths.node(t.o.Node)
	if e.ID != "" {
		place = t.paths.host(e.ID)
	}
	return vip.Problem{Code: vip.CodeNameTaken, Place: "consul:" + place, Message: e.Error(), Hint: e.hint}
}

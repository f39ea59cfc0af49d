package snapshot

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/pipeline/overrides"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/vip"
)

// Format is the format of the documents.
const Format = "ironvip/export/1"

// Document is a store's contents as one JSON object. Leases, services and states have
// the form of the store.
type Document struct {
	Format  string    `json:"format"`
	Node    string    `json:"node"`  // the node that wrote it
	Store   string    `json:"store"` // its source: "bolt", "consul", "etcd"
	Taken   time.Time `json:"taken"`
	Version string    `json:"version"` // of ironvip

	Leases   []ipam.Lease                  `json:"leases"` // addresses in order, then node ports
	Services map[string]rest.Record        `json:"services"`
	States   map[string]overrides.Override `json:"states"`

	// Unreadable are values that the store could not read. A restore reports them as
	// conflicts.
	Unreadable []Unreadable `json:"unreadable,omitempty"`
}

// NewDocument returns the document of contents; the caller fills in its origin.
func NewDocument(c Contents) Document {
	d := Document{Format: Format, Leases: []ipam.Lease{}, Services: map[string]rest.Record{}, States: map[string]overrides.Override{}}
	for _, r := range slices.SortedFunc(maps.Keys(c.Leases), ipam.Resource.Compare) {
		if l := c.Leases[r]; l.State != ipam.Blocked {
			d.Leases = append(d.Leases, l)
			continue
		}
		d.Unreadable = append(d.Unreadable, unreadableLease(c.Leases[r]))
	}
	d.Unreadable = append(d.Unreadable, c.Unreadable...)
	maps.Copy(d.Services, c.Services)
	maps.Copy(d.States, c.States)
	return d
}

func unreadableLease(l ipam.Lease) Unreadable {
	key, _ := l.Resource.MarshalText() // has no error for any resource
	u := Unreadable{Kind: "lease", Key: string(key), Message: l.Reason}
	for _, h := range l.Holders {
		u.Services = append(u.Services, h.Service.String())
	}
	return u
}

// raw is a document with undecoded parts, so that each invalid part can be named.
type raw struct {
	Format   string                     `json:"format"`
	Leases   []json.RawMessage          `json:"leases"`
	Services map[string]json.RawMessage `json:"services"`
	States   map[string]json.RawMessage `json:"states"`

	Unreadable []Unreadable `json:"unreadable"`
}

// Read decodes a document and validates each part. With any problem it returns no
// contents.
func Read(data []byte) (Contents, []vip.Problem) {
	var in raw
	if err := json.Unmarshal(data, &in); err != nil {
		return Contents{}, []vip.Problem{{Code: vip.CodeInvalid, Message: "not a snapshot: " + jsonError(data, err),
			Hint: "create one with: ironvip snapshot save FILE"}}
	}
	if in.Format != Format {
		hint := "create one with: ironvip snapshot save FILE"
		if strings.HasPrefix(in.Format, "ironvip/export/") {
			hint = "restore it with the version of ironvip that saved it, or a newer one"
		}
		return Contents{}, []vip.Problem{{Code: vip.CodeInvalid, Field: "format", Message: fmt.Sprintf("is %q, not %q", in.Format, Format), Hint: hint}}
	}
	r := reader{out: Contents{Leases: map[ipam.Resource]ipam.Lease{}, Services: map[string]rest.Record{}, States: map[string]overrides.Override{}}}
	for i, text := range in.Leases {
		r.lease(fmt.Sprintf("leases[%d]", i), text)
	}
	for _, key := range slices.Sorted(maps.Keys(in.Services)) {
		r.service(key, in.Services[key])
	}
	for _, key := range slices.Sorted(maps.Keys(in.States)) {
		r.state(key, in.States[key])
	}
	if len(r.problems) > 0 {
		return Contents{}, r.problems
	}
	r.out.Unreadable = in.Unreadable
	return r.out, nil
}

type reader struct {
	out      Contents
	problems []vip.Problem
}

func (r *reader) bad(field, service, format string, args ...any) {
	r.problems = append(r.problems, vip.Problem{Code: vip.CodeInvalid, Field: field, Service: service, Message: fmt.Sprintf(format, args...)})
}

func (r *reader) lease(field string, text []byte) {
	var l ipam.Lease
	if err := json.Unmarshal(text, &l); err != nil {
		r.bad(field, "", "%s", err)
		return
	}
	if _, twice := r.out.Leases[l.Resource]; twice {
		r.bad(field, "", "%s is defined twice", l.Resource)
		return
	}
	r.out.Leases[l.Resource] = l
}

func (r *reader) service(key string, text []byte) {
	field := fmt.Sprintf("services[%q]", key)
	var record rest.Record
	if err := strict(text, &record); err != nil {
		r.bad(field, key, "%s", err)
		return
	}
	row, problems := record.Spec.Build(rest.Type, "")
	for _, p := range problems {
		r.problems = append(r.problems, vip.Problem{Code: p.Code, Service: key, Field: p.Field, Message: p.Message, Hint: p.Hint})
	}
	if len(problems) > 0 {
		return
	}
	if name := row.Key.Namespace + "/" + row.Key.Name; name != key {
		r.bad(field, key, "is the service %q", name)
		return
	}
	r.out.Services[key] = record
}

func (r *reader) state(key string, text []byte) {
	field := fmt.Sprintf("states[%q]", key)
	var o overrides.Override
	if err := strict(text, &o); err != nil {
		r.bad(field, "", "%s", err)
		return
	}
	if o.Weight == nil && o.State != vip.Drain.String() && o.State != vip.Maint.String() {
		r.bad(field, "", "invalid state %q: must be drain or maint", o.State)
		return
	}
	if err := o.Check(key); err != nil {
		r.bad(field, "", "%s", err)
		return
	}
	r.out.States[key] = o
}

// strict decodes JSON and rejects unknown keys.
func strict(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

// jsonError names the line of a syntax error.
func jsonError(data []byte, err error) string {
	var at int64
	switch e := err.(type) {
	case *json.SyntaxError:
		at = e.Offset
	case *json.UnmarshalTypeError:
		at = e.Offset
	}
	if at <= 0 || at > int64(len(data)) {
		return err.Error()
	}
	return fmt.Sprintf("line %d: %s", 1+bytes.Count(data[:at], []byte("\n")), err)
}

package api

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/wait"
)

// An address is reserved for a service, which gets it, keeps it reserved, and loses only the mark.
func TestReservation(t *testing.T) {
	r := newRig(t)
	a := r.ask("POST", v1.PathVIPs, `{"address":"192.0.2.200","for":"web"}`)
	if a.StatusCode != 201 || a.Header.Get("Location") != v1.VIPPath("192.0.2.200") {
		t.Fatalf("%d %v %s", a.StatusCode, a.Header, a.body)
	}
	read := func() v1.VIP { return decode[v1.VIP](r, "GET", v1.VIPPath("192.0.2.200"), "") }
	if v := read(); v.State != "reserved" || v.Reservation == nil || v.Reservation.For != "web" || time.Since(v.Reservation.Since) > time.Minute || len(v.Holders) != 0 || v.Pool != "lan" {
		t.Errorf("%+v", v)
	}
	for body, want := range map[string]string{
		`{"address":"192.0.2.200","for":"web"}`:   "409 address_taken address",
		`{"address":"192.0.2.200"}`:               "409 address_taken address",
		`{"address":"10.0.0.1"}`:                  "422 invalid_reservation address",
		`{"address":"nowhere"}`:                   "422 invalid_reservation address",
		`{"address":"fe80::1%eth0"}`:              "422 invalid_reservation address",
		`{"pool":"none"}`:                         "422 invalid_reservation pool",
		`{"pool":"lan","family":"ipv6"}`:          "422 invalid_reservation family",
		`{"pool":"lan","family":"ipx"}`:           "422 invalid_reservation family",
		`{"pool":"lan","for":"a/b/c"}`:            "422 invalid_reservation for",
		`{"pool":"lan","address":"192.0.2.9"}`:    "422 invalid_reservation pool",
		`{"address":"192.0.2.9","family":"ipv4"}`: "422 invalid_reservation family",
		`{}`:             "422 invalid_reservation address",
		`{"adress":"x"}`: "422 invalid_reservation adress",
		`{"address":3}`:  "422 invalid_reservation address",
		`[`:              "400 invalid_request",
	} {
		got := r.ask("POST", v1.PathVIPs, body)
		doc := got.problem(t)
		text := fmt.Sprint(got.StatusCode, " ", doc.Code)
		if len(doc.Errors) > 0 {
			text += " " + doc.Errors[0].Field
		}
		if !strings.HasPrefix(text, want) || doc.Hint == "" && got.StatusCode == 409 {
			t.Errorf("%s: %s, want %s: %s", body, text, want, got.body)
		}
	}

	decode[v1.Service](r, "PUT", webPath, webBody("10.0.0.1"), "Prefer: wait=60")
	if v := read(); v.State != "held" || v.Holders[0].Service != "web" || v.Reservation == nil {
		t.Errorf("%+v", v)
	}
	explained := decode[v1.Explanation](r, "GET", v1.ExplainPath("default", "web"), "")
	expect.Contains(t, strings.Join(explained.Lines, "\n"), "is held by this service and stays reserved after it.")
	if again := r.ask("POST", v1.PathVIPs, `{"address":"192.0.2.200","for":"db"}`); again.problem(t).Code != v1.CodeAddressTaken {
		t.Errorf("%s", again.body)
	}
	if v := decode[v1.VIP](r, "DELETE", v1.VIPPath("192.0.2.200"), ""); v.State != "held" || v.Reservation != nil || v.Revision == 0 {
		t.Errorf("%+v", v)
	}
	if v := read(); v.State != "held" || v.Reservation != nil {
		t.Errorf("%+v", v)
	}
	unmarked := func() bool {
		text := strings.Join(decode[v1.Explanation](r, "GET", v1.ExplainPath("default", "web"), "").Lines, "\n")
		return strings.Contains(text, "and is held by this service.")
	}
	wait.Until(t, "the explanation no longer says that it is reserved", unmarked)
	again := r.ask("DELETE", v1.VIPPath("192.0.2.200"), "")
	if doc := again.problem(t); again.StatusCode != 409 || doc.Code != v1.CodeAddressTaken || !strings.Contains(doc.Detail, `is held by service "web" of source rest since`) ||
		len(doc.Errors) != 1 || doc.Errors[0].Field != "address" {
		t.Errorf("%s", again.body)
	}

	other := decode[v1.VIP](r, "POST", v1.PathVIPs, `{"pool":"lan"}`)
	if other.State != "reserved" || other.Reservation == nil || other.Reservation.For != "" || other.Address == "" {
		t.Errorf("%+v", other)
	}
	p := decode[v1.PoolList](r, "GET", v1.PathPools, "").Items[0]
	expect.Equal(t, p.Reserved, 1, "%+v", p)
	if text := string(r.ask("GET", v1.PathMetrics, "").body); !strings.Contains(text, `ironvip_pool_addresses{pool="lan",state="reserved"} 1`) {
		t.Error("no metric of reserved addresses")
	}
	if v := decode[v1.VIP](r, "DELETE", v1.VIPPath(other.Address), ""); v.State != "free" || v.Reservation != nil || len(v.Holders) != 0 {
		t.Errorf("%+v", v)
	}
	for path, want := range map[string]int{v1.VIPPath(other.Address): 404, v1.VIPPath("nowhere"): 400} {
		if a := r.ask("DELETE", path, ""); a.StatusCode != want {
			t.Errorf("%s: %d %s", path, a.StatusCode, a.body)
		}
	}
	if log := r.log.String(); !strings.Contains(log, "operation=reserve-vip") || !strings.Contains(log, "operation=release-vip") {
		t.Errorf("no audit line: %s", log)
	}
	var kinds []string
	for _, e := range decode[v1.EventList](r, "GET", v1.PathEvents, "").Items {
		kinds = append(kinds, e.Kind)
	}
	if all := strings.Join(kinds, " "); !strings.Contains(all, "address_reserved") || !strings.Contains(all, "reservation_released") {
		t.Errorf("events %s", all)
	}
}

// brokenReservations are reservations of a store that fails.
type brokenReservations struct{ err error }

func (f brokenReservations) Reserve(context.Context, ipam.Reserving) (ipam.Lease, error) {
	return ipam.Lease{}, f.err
}
func (f brokenReservations) Unreserve(context.Context, netip.Addr) (ipam.Lease, error) {
	return ipam.Lease{}, f.err
}

func TestReservationWithoutAStore(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
		code string
	}{
		{fmt.Errorf("reserve: %w", ipam.ErrUnavailable), 503, v1.CodeStoreUnavailable},
		{fmt.Errorf("reserve: %w: %w", ipam.ErrUnavailable, syscall.ENOSPC), 507, v1.CodeStoreFull},
		{fmt.Errorf("reserve: %w", &ipam.ConflictError{}), 409, v1.CodeConflict},
		{context.Canceled, 503, v1.CodeUnavailable},
		{errors.New("odd"), 500, v1.CodeInternal},
	} {
		r := newRig(t, func(d *Deps) { d.Addresses.Reservations = brokenReservations{c.err} })
		for _, a := range []answer{r.ask("POST", v1.PathVIPs, `{"pool":"lan"}`), r.ask("DELETE", v1.VIPPath("192.0.2.9"), "")} {
			if doc := a.problem(t); a.StatusCode != c.want || doc.Code != c.code {
				t.Errorf("%v: %s", c.err, a.body)
			}
		}
	}
}

// A body that is JSON but not the object that the path takes has the code of that kind of object.
func TestInvalidBodiesHaveTheCodeOfTheObject(t *testing.T) {
	r := newRig(t)
	decode[v1.Service](r, "PUT", webPath, webBody("10.0.0.1"), "Prefer: wait=60")
	for _, c := range []struct{ method, path, code string }{
		{"PUT", webPath, v1.CodeInvalidService},
		{"PUT", webPath + "/backends/10.0.0.1:8080", v1.CodeInvalidService},
		{"PUT", webPath + "/backends/10.0.0.1:8080/state", v1.CodeInvalidService},
		{"POST", v1.PathVIPs, v1.CodeInvalidReservation},
		{"PUT", v1.PathTokens + "/ci", v1.CodeInvalidToken},
	} {
		for body, code := range map[string]string{`{"nonsense":1}`: "unknown_key", `{"nonsense":1,"nonsense":2}`: "invalid"} {
			a := r.ask(c.method, c.path, body)
			if doc := a.problem(t); a.StatusCode != 422 || doc.Code != c.code || len(doc.Errors) == 0 || doc.Errors[0].Code != code || doc.Errors[0].Field != "nonsense" {
				t.Errorf("%s %s %s: %d %s", c.method, c.path, body, a.StatusCode, a.body)
			}
		}
	}
}

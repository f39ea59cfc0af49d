//go:build system

package program

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
)

// On a full disk writes are rejected with a hint, traffic continues, and nothing that was
// acknowledged is lost. Once there is space, everything continues automatically.
func TestFullDisk(t *testing.T) {
	parallel(t)
	need.Root(t)
	h := newHost(t)
	a, b := newBackend(t, "a"), newBackend(t, "b")
	disk := filepath.Join(h.dir, "state")
	must.Succeed(t, os.Mkdir(disk, 0o750))
	must.Succeed(t, syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=2m"), "mount a small tmpfs")
	t.Cleanup(func() {
		h.stop()
		expect.Succeed(t, syscall.Unmount(disk, syscall.MNT_DETACH), "unmount %s", disk)
	})
	h.write("services.d/web.toml", service("web", "", a))
	h.start()
	web := h.vip("web") + ":8080"
	acknowledged := map[string]string{}
	for i := range 5 {
		name := fmt.Sprintf("early%d", i)
		acknowledged[name] = h.put(name, a)
	}

	// First only a filler grows, then the state grows into the rest.
	filler := filepath.Join(disk, "filler")
	fill(t, filler)
	refused := 0
	for i := range 400 {
		name := fmt.Sprintf("late%d", i)
		body := fmt.Sprintf(`{"labels": {"a": %q}, "ports": [{"port": 8080}], "backends": [%s]}`, strings.Repeat("x", 1000), b.json())
		code, tree := h.rest("PUT", "/v1/services/default/"+name, body)
		switch {
		case code == 200 || code == 201:
			acknowledged[name] = ""
			continue
		case code != 507 && code != 503:
			t.Fatalf("PUT on a full disk: %d %s", code, compact(tree))
		}
		text := compact(tree)
		mentions(t, "the refusal", text, "disk is full", "free disk space", `"code":"store_full"`)
		got, _ := h.rest("GET", "/v1/services/default/"+name, "")
		expect.Equal(t, got, 404, "a refused service is there")
		if refused++; refused == 3 {
			break
		}
	}
	must.AtLeast(t, refused, 3, "the disk is never full: %d refusals", refused)
	r := h.cli("status")
	expect.Equal(t, r.code, 3, "status on a full disk")
	mentions(t, "status on a full disk", r.stdout, "disk is full", "state")
	t.Logf("%d services acknowledged, then %d refusals", len(acknowledged), refused)
	h.serves(web, "a")
	// Backends of existing services can be changed, because that needs no lease.
	h.write("services.d/web.toml", service("web", "", b))
	h.serves(web, "b")
	h.write("services.d/new.toml", service("new", "", b))
	h.eventually("a new file's service has an address or says that the disk is full", func() error {
		if len(h.vips("new")) > 0 {
			return nil
		}
		if text := h.cli("service", "explain", "new").stdout; !strings.Contains(text, "disk is full") {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
	// A crash on the full disk and a start on it lose nothing.
	vips := map[string]string{}
	for name := range acknowledged {
		if list := h.vips(name); len(list) > 0 {
			vips[name] = list[0]
		}
	}
	h.kill()
	h.start()
	h.serves(web, "b")
	check := func() {
		t.Helper()
		for name := range acknowledged {
			if code, _ := h.rest("GET", "/v1/services/default/"+name, ""); code != 200 {
				t.Errorf("%s was acknowledged and is gone: %d", name, code)
			}
			if was, now := vips[name], h.vips(name); was != "" && (len(now) == 0 || now[0] != was) {
				t.Errorf("%s moved from %s to %v", name, was, now)
			}
		}
	}
	check()

	must.Succeed(t, os.Remove(filler))
	h.serves(h.vip("new")+":8080", "b") // automatically
	h.serves(h.put("after", a)+":8080", "a")
	acknowledged["after"] = ""
	h.kill()
	h.start()
	check()
	h.serves(web, "b")
	h.ok("status", "--wait")
}

// A state directory that is deleted under a running agent: no write is acknowledged that would be
// lost, the status fails and says what to do, and this keeps every address and registration.
func TestDeletedStateDirectory(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a := newBackend(t, "a")
	h.write("services.d/web.toml", service("web", "", a))
	h.start()
	web := h.vip("web")
	early := h.put("early", a)
	state := filepath.Join(h.dir, "state")
	must.Succeed(t, os.RemoveAll(state))
	must.Succeed(t, os.Mkdir(state, 0o750))
	body := fmt.Sprintf(`{"ports": [{"port": 8080}], "backends": [%s]}`, a.json())
	code, tree := h.rest("PUT", "/v1/services/default/late", body)
	expect.Equal(t, code, 503, "a registration that would be lost is answered by")
	mentions(t, "the refusal", compact(tree), "was deleted while in use", "ironvip snapshot save")
	h.status("FAIL", "state", "was deleted while in use")
	h.eventually("an event", func() error {
		if out := h.ok("events"); !strings.Contains(out, "state_failed") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	h.serves(web+":8080", "a")

	saved := filepath.Join(h.dir, "vips.json")
	h.ok("snapshot", "save", saved)
	h.stop()
	r := command(t, "snapshot", "restore", saved, "--config", h.dir)
	must.Equal(t, r.code, 0, "restore: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	h.start()
	expect.Equal(t, h.vip("web"), web, "the service had %s, and now has", web)
	h.serves(early+":8080", "a")
	if code, _ := h.rest("PUT", "/v1/services/default/late", body); code != 201 {
		t.Errorf("a registration after the restore is answered by %d", code)
	}
}

package cli

import (
	"errors"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/agent"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/fleet/membership"
	"github.com/ironvip/ironvip/internal/store"
)

func TestNodeNewID(t *testing.T) {
	var asked agent.StoreRequest
	var fails error
	idle := Options{NewIdentity: func(req agent.StoreRequest) (agent.IdentityChange, error) {
		asked = req
		return agent.IdentityChange{Old: "id-1", New: "id-2"}, fails
	}}
	for _, c := range []struct {
		line string
		want agent.StoreRequest
		err  error
		code int
		out  string
	}{
		{"", agent.StoreRequest{Config: DefaultConfig}, nil, ExitOK, "OLD ID  NEW ID\nid-1    id-2\n"},
		{"--config /c --state-dir /s -o name", agent.StoreRequest{Config: "/c", StateDir: "/s"}, nil, ExitOK, "id-2\n"},
		{"", agent.StoreRequest{Config: DefaultConfig}, &agent.OfflineError{Err: errors.New("an agent runs"), Cause: agent.CauseRunning, Hint: "stop it first"}, ExitConflict, ""},
	} {
		asked, fails = agent.StoreRequest{}, c.err
		if r := run(t, idle, "node new-id "+c.line); r.code != c.code || r.stdout != c.out || asked != c.want {
			t.Errorf("%q: asked for %+v, %s", c.line, asked, r)
		}
	}
}

// The command replaces the id in the state file. It refuses while another process has the file
// open.
//
// Slow: the command waits for the lock of the state file before it refuses.
func TestNodeNewIDInAStateFile(t *testing.T) {
	dir := t.TempDir()
	db, err := store.Open(dir + "/" + store.FileName)
	if err != nil {
		t.Fatal(err)
	}
	first, err := membership.LoadIdentity(db)
	if err != nil {
		t.Fatal(err)
	}
	line := "node new-id --config " + dir + "/" + configs.ConfigName + " --state-dir " + dir
	if r := run(t, Options{}, line); r.code != ExitConflict || r.stdout != "" || !strings.Contains(r.stderr, "stop it first") {
		t.Errorf("while an agent runs: %s", r)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	r := run(t, Options{}, line+" -o name")
	if db, err = store.Open(dir + "/" + store.FileName); err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if now, err := membership.LoadIdentity(db); r.code != ExitOK || err != nil || now.ID == first.ID || now.ID != strings.TrimSpace(r.stdout) {
		t.Errorf("%s, the id is %+v, %v", r, now, err)
	}
}

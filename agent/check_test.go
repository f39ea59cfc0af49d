package agent

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// A check says what keeps an agent from starting, also beside a running one, and leaves everything as it is.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, configs.ConfigName)
	write := func(name, text string) { must.Succeed(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600)) }
	config := "[node]\nstate_dir = \"" + dir + "\"\n[dataplane]\nmode = \"proxy\"\n"
	write(configs.ConfigName, config)
	expect.Succeed(t, Check(Options{Config: path}), "without a state file")
	entries := must.Get(os.ReadDir(dir))(t)
	expect.Equal(t, len(entries), 1, "files afterwards")

	db := must.Get(store.Open(filepath.Join(dir, "ironvip.db")))(t)
	expect.Succeed(t, Check(Options{Config: path}), "beside a running agent")
	must.Succeed(t, db.Close())
	expect.Succeed(t, Check(Options{Config: path}), "after one")

	write(configs.ConfigName, config+"resync = 1\n")
	err := Check(Options{Config: path})
	expect.Contains(t, err.Error(), "configuration refused")
	expect.Contains(t, err.Error(), configs.ConfigName+":5")
	write(configs.ConfigName, config)
	write("ironvip.db", "this is no state file")
	err = Check(Options{Config: path})
	expect.Contains(t, err.Error(), "state file "+dir)
}

// An agent with too few files does not start.
func TestTooFewFiles(t *testing.T) {
	for limit, ok := range map[uint64]bool{32: false, 255: false, 256: true, 1 << 20: true} {
		err := checkFiles(limit)
		expect.Equal(t, err == nil, ok, "%d files: %v", limit, err)
	}
}

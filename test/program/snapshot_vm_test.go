//go:build vm

package program

import (
	"bufio"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Moving to another store while the agent is stopped changes nothing in the kernel. It forwards all
// the time, the agent finds the state that it would program, and an open connection continues.
func TestMovingStoresLeavesTheKernelAlone(t *testing.T) {
	h := newHost(t)
	a, b := newBackend(t, "a"), newBackend(t, "b")
	h.start()
	h.put("api", a, b)
	h.write("services.d/web.toml", service("web", "", a))
	web := h.vip("web") + ":8080"
	h.serves(web, "a")
	open, err := net.Dial("tcp", web)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	talk := bufio.NewReader(open)
	if _, err := talk.ReadString('\n'); err != nil { // the name
		t.Fatal(err)
	}
	h.stop()
	before := witness(t)
	text, _ := h.save("--config", h.dir)
	file := filepath.Join(t.TempDir(), "vips.json")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	h.edit("ironvip.toml", "/state\"", "/state2\"")
	if r := command(t, "snapshot", "restore", file, "--config", h.dir); r.code != 0 {
		t.Fatalf("restore: exit %d\n%s", r.code, r.stderr)
	}
	if got, err := who(web); got != "a" {
		t.Errorf("without an agent: answered by %q, %v", got, err)
	}
	h.start()
	if n := h.writes(); n != 0 {
		t.Errorf("%v kernel writes at a start on another store", n)
	}
	if now := witness(t); now != before {
		t.Errorf("a start on another store changed the kernel:\n%s\nwas\n%s", now, before)
	}
	open.SetDeadline(time.Now().Add(maxWait))
	if _, err := io.WriteString(open, "still there?\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := talk.ReadString('\n'); err != nil || line != "still there?\n" {
		t.Errorf("the connection that was open before the move: %q, %v", line, err)
	}
}

//go:build linux

// Command guest runs an agent in a VM (test/vm) for test/fleet, and makes its API available to the
// VM's host.
//
// Its arguments are the folder of the agent's configuration and a port of the host. The host can't
// connect to the guest, so the guest keeps some connections to that port open. The host uses one by
// sending a line: "api" connects it to the agent's socket, and "clock 3600" sets the guest's clock
// forward by that many seconds, which the guest answers with "ok". It ends with the agent.
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// spare is the number of open connections for the host to use, and of those in use at most.
const spare = 8

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: guest DIR PORT")
	}
	dir, host := os.Args[1], net.JoinHostPort(os.Getenv("IRONVIP_VM_HOST"), os.Args[2])
	for range spare {
		go func() {
			for {
				if serve(host, filepath.Join(dir, "sock")) != nil {
					time.Sleep(100 * time.Millisecond) // the agent is not ready, or the host cut off
				}
			}
		}()
	}
	agent := exec.Command("/usr/bin/ironvip", "agent", "--config", dir)
	agent.Stdout, agent.Stderr = os.Stdout, os.Stderr
	log.Fatal("the agent has ended: ", agent.Run())
}

// serve offers one connection to the host, and does what the host wants.
func serve(host, socket string) error {
	c, err := net.Dial("tcp", host)
	if err != nil {
		return err
	}
	defer c.Close()
	line, err := readLine(c)
	if err != nil {
		return err
	}
	var seconds int64
	if _, err := fmt.Sscanf(line, "clock %d", &seconds); err == nil {
		if err := setClock(seconds); err != nil {
			return err
		}
		_, err = io.WriteString(c, "ok\n")
		return err
	}
	api, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	defer api.Close()
	go func() {
		io.Copy(api, c) // its end is the end of either connection
		api.Close()
	}()
	io.Copy(c, api)
	return nil
}

// readLine reads up to the end of a line, and nothing after it.
func readLine(r io.Reader) (string, error) {
	var line strings.Builder
	for b := make([]byte, 1); ; line.Write(b) {
		if _, err := r.Read(b); err != nil {
			return "", err
		}
		if b[0] == '\n' {
			return line.String(), nil
		}
	}
}

func setClock(seconds int64) error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME, &now); err != nil {
		return err
	}
	now.Sec += seconds
	return unix.ClockSettime(unix.CLOCK_REALTIME, &now)
}

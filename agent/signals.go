package agent

import (
	"os"
	"os/signal"
	"syscall"
)

// catchReloads catches the signal that asks for a reload for the whole life of the process, so that it never ends it: a
// signal during the start waits for the agent.
func catchReloads() chan os.Signal {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	return hangup
}

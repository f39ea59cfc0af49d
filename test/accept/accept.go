// Package accept serves the connections of a listener in tests.
package accept

import "net"

// Each calls serve in a goroutine of its own for each connection that the listener accepts until it is closed, and
// closes the connection when serve returns.
func Each(l net.Listener, serve func(net.Conn)) {
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c)
			}()
		}
	}()
}

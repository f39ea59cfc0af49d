// Package heartbeat exchanges authenticated UDP messages between the hosts that announce VIPs. It
// finds out which hosts are alive, whether they receive this host, and what each of them could
// announce and announces.
//
// Its input is this host's state (Set, SetDraining), received packets, and the time. Its output is
// packets to send, and calls of a Sink, which announce.Decider implements. Exchange is a state
// machine without goroutines and clocks. Conn in udp.go is the socket.
//
// A message proves that its sender has a key of the fleet. Its sequence number, within a random
// epoch for each start of the sender, excludes replays. A new epoch is accepted only from a message
// that echoes a recent sequence number of this host, so an old recording is never accepted. The
// order of wall clocks does not matter. A host that receives nothing from the start can't be told from
// a recording: both ends own the VIPs for heartbeats, and package l2 finds the conflict.
//
// Each host keeps a numbered log of its claims, and sends each peer what the peer has not
// acknowledged yet, with every heartbeat and at once after a change. A digest detects copies that
// differ.
//
// Files:
//
//	message.go  the wire format
//	claims.go   this host's log of claims, and digests
//	peer.go     another host, its liveness, and messages from it
//	exchange.go the state machine
//	status.go   its state in words
//	udp.go      the socket
package heartbeat

// Package claim decides when to announce, probe and give up addresses on a LAN.
//
// A Machine has one state for each address that this host is to own. Its inputs are the caller's
// decisions, what other stations say, whether frames can be sent, and the time. Its outputs are calls
// of an Output: open or close the gate for an address, send a frame, report a state. The package has
// no clock, socket or goroutine, so tests run through hours in no time. The rules are those of RFC
// 5227, with these differences: an address of a host that takes over is announced without probing,
// announcements repeat (0, 0.1, 0.5, 1.5, 3.5 s and each minute), and the later ones are verified
// with a question, because switches don't deliver another holder's answers to this host.
package claim

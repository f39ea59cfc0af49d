// Package message has the wire format of BGP-4 messages (RFC 4271, section 4).
//
// It appends the messages that a speaker that only announces sends, and parses the messages that
// it must understand: the header of each message, OPEN with its capabilities, and NOTIFICATION. The
// content of a received UPDATE is never parsed. A NOTIFICATION is an error value, with its reason
// in an operator's terms. The package does no I/O of its own and knows no settings.
//
//	message.go       the header, and KEEPALIVE
//	family.go        address families
//	open.go          OPEN
//	capability.go    the capabilities in an OPEN
//	attribute.go     path attributes
//	community.go     communities
//	update.go        UPDATE: announced and withdrawn prefixes, and End-of-RIB
//	nlri.go          prefixes in an UPDATE
//	notification.go  NOTIFICATION, its codes and subcodes
//	reason.go        what a NOTIFICATION means, in words
package message

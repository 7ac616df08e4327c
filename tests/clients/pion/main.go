// Talks to a command in an instance as the original's client does: a peer
// connection with one data channel, an offer on stdout, an answer on stdin,
// then what is on the command line goes in and what comes out is printed.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/pion/webrtc/v2"
)

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "pion:", err)
		os.Exit(1)
	}
}

func main() {
	peer, err := webrtc.NewPeerConnection(webrtc.Configuration{})
	fail(err)
	channel, err := peer.CreateDataChannel("data", nil)
	fail(err)
	done := make(chan struct{})
	channel.OnOpen(func() {
		for _, text := range os.Args[1:] {
			fail(channel.Send([]byte(text)))
		}
	})
	channel.OnMessage(func(message webrtc.DataChannelMessage) {
		_, _ = os.Stdout.Write(message.Data)
	})
	channel.OnClose(func() { close(done) })

	offer, err := peer.CreateOffer(nil)
	fail(err)
	fail(peer.SetLocalDescription(offer))
	text, err := json.Marshal(offer)
	fail(err)
	fmt.Println(string(text))

	line, err := bufio.NewReaderSize(os.Stdin, 1<<20).ReadBytes('\n')
	fail(err)
	var answer webrtc.SessionDescription
	fail(json.Unmarshal(line, &answer))
	fail(peer.SetRemoteDescription(answer))
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		fail(fmt.Errorf("the channel was not closed within a minute"))
	}
}

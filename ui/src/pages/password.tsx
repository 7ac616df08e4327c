// Changing a password: one's own, or the first one that the server made.
import { useState } from "preact/hooks";
import { plural } from "../format";
import { Dialog, note } from "../parts/dialog";
import { Form, Text } from "../parts/form";
import { call } from "../rpc";
import { whoAmI } from "../session";

export function PasswordDialog({ close, username, known }: { close: () => void; username?: string; known?: string }) {
  const [old, setOld] = useState(known ?? "");
  const [fresh, setFresh] = useState("");
  const [again, setAgain] = useState("");
  const short = fresh.length < 8 ? "At least 8 characters." : undefined;
  const unlike = fresh !== again ? "The two passwords differ." : undefined;
  const missing = !username && !old ? "Enter your current password." : undefined;
  const send = async () => {
    const reply = await call("selvage.identity.IdentityService/SetPassword",
      username ? { username, newPassword: fresh } : { currentPassword: old, newPassword: fresh });
    const ended = reply.sessionsEnded ?? 0;
    note(`The password is changed${ended ? `; ${plural(ended, "other session")} ended` : ""}.`);
    if (!username) await whoAmI();
    close();
  };
  return (
    <Dialog title={username ? `New password for ${username}` : "Change your password"} close={close} testid="password-dialog">
      <Form send={send} submit="Change the password" cancel={close} problems={[missing, short, unlike]}>
        {(tried) => (
          <>
            {!username && !known && <Text label="Current password" type="password" autocomplete="current-password" value={old} set={setOld} wrong={tried ? missing : undefined} testid="password-old" />}
            <Text label="New password" type="password" autocomplete="new-password" value={fresh} set={setFresh} hint="8 to 256 characters" wrong={tried ? short : undefined} testid="password-new" />
            <Text label="New password again" type="password" autocomplete="new-password" value={again} set={setAgain} wrong={tried ? unlike : undefined} testid="password-again" />
          </>
        )}
      </Form>
    </Dialog>
  );
}
